"""The last resort against a loop that never ends: a limit of seconds for each test.

Not pytest-timeout: Hypothesis takes its failure for one more failing example and runs the endless loop again.
"""

import faulthandler
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import pytest

from tiny_llm_engine.machine.repo import SOURCES
from tiny_llm_engine.solutions.solution import SOLUTIONS


class TestTookTooLong(BaseException):
    """A test ran into the limit. No `Exception`, so that neither the code under test nor Hypothesis goes on."""

    __test__ = False  # no class of tests


class TimeLimit:
    """A pytest plugin that ends a test after some seconds, and names the line that it was at.

    It needs SIGALRM and pytest on the main thread. Elsewhere, as on Windows, there is no limit. Python handles a
    signal only between two of its own instructions. A call into C that never returns ends the whole process, after
    twice the seconds: with the same sentence, or, if the call also holds the interpreter, with the lines that each
    thread was at.

    Args:
        seconds: per test, without its fixtures.
        last_lines: what else is to be said when the process ends.
    """

    def __init__(self, seconds: float, last_lines: Callable[[], list[str]] = list):
        self.seconds, self.last_lines = seconds, last_lines
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
            raise TestTookTooLong(self._sentence(item, frame))

        def end() -> None:
            frame = sys._current_frames().get(threading.main_thread().ident or 0)
            lines = [self._sentence(item, frame), *self.last_lines()]
            os.write(self.errors, "".join(f"\n{line}" for line in lines).encode() + b"\n")
            os._exit(1)

        before = signal.signal(signal.SIGALRM, stop)
        # Once more each second, in case the code under test catches everything.
        signal.setitimer(signal.ITIMER_REAL, self.seconds, 1.0)
        ending = threading.Timer(2 * self.seconds, end)
        ending.daemon = True
        ending.start()
        faulthandler.dump_traceback_later(2 * self.seconds + 1, exit=True, file=self.errors)
        try:
            yield
        finally:
            faulthandler.cancel_dump_traceback_later()
            ending.cancel()
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)

    def _sentence(self, item: pytest.Item, frame: FrameType | None) -> str:
        says = f"{item.name} ran for {self.seconds:g} s: a loop does not end, or an array is far too large."
        return f"{says} {_place(frame)}"


def _place(frame: FrameType | None) -> str:
    """The innermost line of the solution that runs; empty if none does."""
    solutions = tuple(f"{SOURCES / name}/" for name in SOLUTIONS.values())
    for running, line in traceback.walk_stack(frame):
        code = running.f_code
        if code.co_filename.startswith(solutions):
            return f"It was at {code.co_filename.removeprefix(f'{SOURCES}/')}, line {line}, in {code.co_name}"
    return ""
