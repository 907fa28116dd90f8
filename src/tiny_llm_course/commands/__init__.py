"""One thin file per command: arguments, call, print."""

import faulthandler
import sys
from types import TracebackType


def _report(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Report an exception as Python does, except Ctrl-C during the command's imports.

    Later `terminal.command` handles Ctrl-C.
    """
    if not issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)


sys.excepthook = _report
# A learner's kernel in C++ may crash: Python then says where it was called. Tests have this switched on already.
if not faulthandler.is_enabled() and sys.stderr is sys.__stderr__:
    faulthandler.enable()
