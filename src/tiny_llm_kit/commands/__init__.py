"""One thin file per command: arguments, call, print."""

import sys
from types import TracebackType


def _report(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Report an exception as Python does, except Ctrl-C during the command's imports.

    Later `terminal.command` handles Ctrl-C.
    """
    if not issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)


sys.excepthook = _report
