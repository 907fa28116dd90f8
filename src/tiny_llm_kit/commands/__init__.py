"""One thin file per command: arguments, call, print."""

import sys
from types import TracebackType


def _report(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Python's own report, except of Ctrl-C while the command's imports still run: `terminal.command` comes later."""
    if not issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)


sys.excepthook = _report
