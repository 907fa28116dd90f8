"""The last resort against a loop that never ends: a limit of seconds for each test.

Not pytest-timeout: Hypothesis takes its failure for one more failing example and runs the endless loop again.
"""

import faulthandler
import os
import signal
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import pytest

from ...engine.solution import SOLUTIONS
from ...repo import SOURCES


class TestTookTooLong(BaseException):
    """A test ran into the limit. No `Exception`, so that neither the code under test nor Hypothesis goes on."""

    __test__ = False  # no class of tests


class TimeLimit:
    """A pytest plugin that ends a test after some seconds, and names the line that it was at.

    It needs SIGALRM and pytest on the main thread. Elsewhere, as on Windows, there is no limit. Python handles a
    signal only between two of its own instructions. A call into C that never returns ends the whole process, after
    twice the seconds and with the lines that each thread was at.

    Args:
        seconds: per test, without its fixtures.
    """

    def __init__(self, seconds: float):
        self.seconds = seconds
        self.errors = os.dup(2)  # while a test runs pytest captures what is written to 2
        on_main = threading.current_thread() is threading.main_thread()
        self.is_possible = on_main and hasattr(signal, "setitimer")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        if not self.is_possible:
            return (yield)
        with self._limited(item):
            return (yield)

    @contextmanager
    def _limited(self, item: pytest.Item) -> Iterator[None]:
        def stop(number: int, frame: FrameType | None) -> None:
            says = f"{item.name} ran for {self.seconds:g} s: a loop does not end."
            raise TestTookTooLong(f"{says} {_place(frame)}")

        before = signal.signal(signal.SIGALRM, stop)
        # Once more each second, in case the code under test catches everything.
        signal.setitimer(signal.ITIMER_REAL, self.seconds, 1.0)
        faulthandler.dump_traceback_later(2 * self.seconds, exit=True, file=self.errors)
        try:
            yield
        finally:
            faulthandler.cancel_dump_traceback_later()
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)


def _place(frame: FrameType | None) -> str:
    """The innermost line of the solution that runs; empty if none does."""
    solutions = tuple(f"{SOURCES / name}/" for name in SOLUTIONS.values())
    for running, line in traceback.walk_stack(frame):
        code = running.f_code
        if code.co_filename.startswith(solutions):
            return f"It was at {code.co_filename.removeprefix(f'{SOURCES}/')}, line {line}, in {code.co_name}"
    return ""
