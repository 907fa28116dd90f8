"""Collects the day tests once, in this process, and runs any of them repeatedly on texts put over the solution.

Starting pytest and collecting the tests took most of the time of a mutant and of a run of the prefix check.
"""

import contextlib
import io
import os
import sys
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Generic, TypeVar
from unittest.mock import patch

import pytest
from hypothesis import settings

from tiny_llm_course.address import Day, Task
from tiny_llm_course.grading.order import port_of, task_of
from tiny_llm_course.grading.plugin import VERDICT
from tiny_llm_course.tree import day_tests
from tiny_llm_engine.solutions.solution import SOLUTIONS

from .overlay import Overlay

Result = TypeVar("Result")

# Kernels in C++ for any processor, and as soon as possible: half the compiler's time is the header of AVX.
KERNEL_FLAGS = "-O0 -U__AVX2__ -U__AVX512F__ -U__AVX512BF16__ -U__AVX512VNNI__ -DBLOCKS_OF_A_TILE=4"


@dataclass
class TestOutcome:
    """One test: its id, the task it grades, and how it ended ("passed", "failed", "blank", "crashed")."""

    nodeid: str
    task: Task | None
    status: str
    message: str


class DayTests(Generic[Result]):
    """A pytest plugin whose session calls `work` instead of running each test once.

    Args:
        work: called with this object, whose `run` runs tests.
        solution: whose texts `work` replaces.
    """

    def __init__(self, work: "Callable[[DayTests], Result]", solution: Overlay):
        self.work = work
        self.solution = solution
        self.items: list[tuple[Task | None, str | None, pytest.Item]] = []
        self.outcomes: dict[str, TestOutcome] = {}
        self.failed_for: dict[Hashable, str] = {}
        self.output = io.StringIO()
        self.results: list[Result] = []
        self.streams = sys.stdout, sys.stderr
        self.is_interrupted = False

    def run(self, of: Day | Task) -> list[TestOutcome]:
        """Outcomes of the tests of a day or of a task, on every port."""
        return [outcome for _, outcome in self.outcomes_of(of)]

    def outcomes_of(self, of: Day | Task, port: str | None = None) -> list[tuple[str, TestOutcome]]:
        """Each test's name without its port, and its outcome.

        Args:
            port: runs only this port's and the policy's tests; None runs those of every port.
        """
        items = self._items(of, port)
        return [(_twin_name(item), self._run(item, after)) for item, after in zip_longest(items, items[1:])]

    def first_failure(self, of: Day | Task, port: str | None = None, idea: Hashable = None) -> TestOutcome:
        """Outcome of the first test that does not pass, or of the last one if all pass.

        Args:
            port: runs only this port's and the policy's tests; None runs those of every port.
            idea: what is wrong. The test that failed for it on one port is the first to be tried on the other.
        """
        items, outcome = self._items(of, port), None
        likely = [item for item in items if _twin_name(item) == self.failed_for.get(idea)]
        for number, item in enumerate(likely + items):
            outcome = self._run(item)
            # A crash counts only in the order of the file, not from the test that is tried early.
            if outcome.status == "failed" or (outcome.status != "passed" and number >= len(likely)):
                self.failed_for[idea] = _twin_name(item)
                break
        if outcome is None:
            raise LookupError(f"{of} has no tests")
        return outcome

    def _run(self, item: pytest.Item, after: pytest.Item | None = None) -> TestOutcome:
        """Run a test; fixtures that `after` shares with it stay. Without it all end: none keeps an earlier solution."""
        with self._output_kept():
            item.ihook.pytest_runtest_protocol(item=item, nextitem=after)
        return self.outcomes.pop(item.nodeid)

    def _items(self, of: Day | Task, port: str | None = None) -> list[pytest.Item]:
        wanted = tuple(of)
        return [
            item
            for task, its, item in self.items
            if (task or ())[: len(wanted)] == wanted and (port is None or its in (None, port))
        ]

    @contextlib.contextmanager
    def _output_kept(self):
        with contextlib.redirect_stdout(self.output), contextlib.redirect_stderr(self.output):
            yield

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        if session.testsfailed:
            return None  # a file that cannot be collected: pytest's own loop says so
        self.items = [(task_of(item), port_of(item), item) for item in sorted(session.items, key=_costs)]
        with contextlib.redirect_stdout(self.streams[0]), contextlib.redirect_stderr(self.streams[1]):
            self.results.append(self.work(self))
        return True

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo) -> None:
        """pytest also calls this for its own `Session.Interrupted`, a subclass."""
        self.is_interrupted = excinfo.type is KeyboardInterrupt

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self, item, call):
        report = yield
        if report.failed or report.when == "call":
            status = "passed" if report.passed else _how(report, call)
            message = str(call.excinfo.value) if call.excinfo else ""
            self.outcomes[item.nodeid] = TestOutcome(item.nodeid, task_of(item), status, message)
        return report


def _costs(item: pytest.Item) -> tuple[bool, bool]:
    """Sort key: tests that load no model first, since they catch most mutants; long searches last."""
    return item.get_closest_marker("hypothesis") is not None, port_of(item) is not None


def _twin_name(item: pytest.Item) -> str:
    """A test's name without its port, the same for both ports."""
    return item.name.replace(f"[{port_of(item)}", "[")


def _how(report, call) -> str:
    """How a failed test ended: "failed" by a check of the test, "crashed" by the code under test."""
    if getattr(report, "blank", None):
        return "blank"
    asserted = isinstance(call.excinfo.value, AssertionError | pytest.fail.Exception)
    return "failed" if asserted else "crashed"


def with_day_tests(
    days: Sequence[Day],
    backends: Sequence[str],
    solution: str,
    work: Callable[[DayTests], Result],
    time_limit: float = 0,
) -> Result:
    """Collect the tests of `days` on a solution, call `work` with them, and return its result.

    Args:
        time_limit: seconds per test; 0 is no limit.

    Raises:
        RuntimeError: with pytest's output, when the tests cannot be collected or `work` fails.
        KeyboardInterrupt: Ctrl-C, which pytest itself would swallow after ending its session.
    """
    tests: DayTests[Result] = DayTests(work, Overlay(SOLUTIONS.get(solution, solution)))
    arguments = [str(file) for day in days for file in day_tests(day)]
    # These cost time in each test and are not needed here; `unraisableexception` runs the garbage collector.
    for plugin in ("anyio", "cacheprovider", "logging", "schemathesis", "unraisableexception", "xdist"):
        arguments += ["-p", f"no:{plugin}"]
    arguments += ["-q", "-s", "--tb=no", "-p", "tiny_llm_course.grading.plugin"]
    arguments += [f"--solution={solution}", f"--backends={','.join(backends)}", f"--time-limit={time_limit}"]
    profile = settings.get_current_profile_name()
    with patch.dict(os.environ), tests._output_kept(), tests.solution:
        os.environ.pop("PYTEST_ADDOPTS", None)  # options meant for the user's own pytest runs
        # There pytest explains every failure in full, which takes minutes for long lists.
        os.environ.pop("CI", None)
        os.environ.setdefault("TINY_LLM_NATIVE_FLAGS", KERNEL_FLAGS)
        settings.load_profile(VERDICT)
        try:
            pytest.main(arguments, plugins=[tests])
        finally:
            settings.load_profile(profile)
    if tests.is_interrupted:
        raise KeyboardInterrupt
    if not tests.results:
        raise RuntimeError(f"the day tests did not run:\n{tests.output.getvalue()}")
    return tests.results[0]
