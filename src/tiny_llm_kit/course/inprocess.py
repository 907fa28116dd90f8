"""Runs day tests inside this process, on whatever the overlay put in place, and says how each test ended."""

import contextlib
import io
from collections.abc import Iterable
from dataclasses import dataclass

import pytest

from .address import Day, Task
from .tree import day_tests


@dataclass
class Outcome:
    """One test: its id, the task it grades, and how it ended ("passed", "failed", "blank", "crashed")."""

    nodeid: str
    task: Task | None
    status: str
    message: str


class _Recorder:
    def __init__(self):
        self.outcomes: dict[str, Outcome] = {}

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self, item, call):
        from .grading.plugin import task_of

        report = yield
        if report.failed or report.when == "call":
            status = "passed" if report.passed else _how(report, call)
            message = str(call.excinfo.value) if call.excinfo else ""
            self.outcomes[item.nodeid] = Outcome(item.nodeid, task_of(item), status, message)
        return report


def _how(report, call) -> str:
    """A failed test is "failed" when a check of the test said so, and "crashed" when the code under test raised."""
    if getattr(report, "blank", None):
        return "blank"
    asserted = isinstance(call.excinfo.value, AssertionError | pytest.fail.Exception)
    return "failed" if asserted else "crashed"


def run_days(
    days: Iterable[Day], backend: str, solution: str, tasks: Iterable[Task] = (), stop: bool = False
) -> list[Outcome]:
    """Runs the tests of `days` (only `tasks`, when given) in this process; `stop` ends at the first that fails."""
    recorder = _Recorder()
    arguments = [str(file) for day in days for file in day_tests(day)]
    arguments += [f"--task={task}" for task in tasks] + ["-x"] * stop
    # pytest's hunt for unraisable exceptions collects all garbage of the process twice a run: half of a mutant's time.
    arguments += ["-q", "--tb=no", "-p", "no:cacheprovider", "-p", "no:unraisableexception"]
    arguments += ["-p", "tiny_llm_kit.course.grading.plugin"]
    arguments += [f"--solution={solution}", f"--backends={backend}"]
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        status = pytest.main(arguments, plugins=[recorder])
    if status not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED) or not recorder.outcomes:
        raise RuntimeError(f"the day tests did not run:\n{output.getvalue()}")
    return list(recorder.outcomes.values())
