"""What a collected test grades, the order of a learner's tests, the last line, and the end after the first failure."""

from collections.abc import Iterable

import pytest

from ..address import Task, parse_task
from .time_limit import TestTookTooLong


def task_of(item: pytest.Item) -> Task | None:
    """The task that a test grades."""
    mark = item.get_closest_marker("task")
    return mark and parse_task(mark.args[0])


def place_of(item: pytest.Item) -> Task | None:
    """The task after whose own tests a test runs: a later one that it also needs, or the one that it grades."""
    mark = item.get_closest_marker("task")
    return mark and parse_task(mark.kwargs.get("after", mark.args[0]))


def port_of(item: pytest.Item) -> str | None:
    """The port that a test runs on; None for a test of the policy."""
    return getattr(getattr(item, "callspec", None), "params", {}).get("b")


def in_order_of_tasks(items: Iterable[pytest.Item]) -> list[pytest.Item]:
    """The tests of each task: first those of one function, then those that also need others, then those on a port.

    A test that also needs a later task, `task("3.3.3", after="3.3.5")`, comes after the tests of that one.
    """
    return sorted(items, key=_place)


def _place(item: pytest.Item) -> tuple[bool, tuple[int, ...], bool, str]:
    place = place_of(item)
    return place is None, tuple(place or ()), place != task_of(item), port_of(item) or ""


def _group(item: pytest.Item) -> tuple[Task | None, bool]:
    """Tests at one place that need the same tasks."""
    return place_of(item), place_of(item) == task_of(item)


def message_of(report: pytest.TestReport) -> str:
    """The message of a failed test in one line: what it often means, where that is known."""
    crash = getattr(report.longrepr, "reprcrash", None)
    said = str(report.longrepr) if crash is None else crash.message
    idea = getattr(report, "idea", None)
    first = next(filter(str.strip, said.splitlines()), "it failed").removeprefix("AssertionError: ")
    return f"{idea} ({first})" if idea else first


class FirstFailure:
    """A pytest plugin that makes the message of the first failure the last line. A blank task does not count.

    Args:
        stops: end the run after the first task with a failing test. The other tests of that task alone still run, and
            are counted, not shown. After a test that took too long nothing else runs: the next ones would take as long.
            Without `stops` only the other tests of its task fail at once, for the same reason.
    """

    def __init__(self, stops: bool):
        self.stops = stops
        self.failed: pytest.Item | None = None
        self.slow: set[Task] = set()  # tasks with a test that took too long
        self.first: pytest.TestReport | None = None  # the failure that is shown
        self.more: set[str] = set()  # the tests of the others

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        if not report.failed or getattr(report, "blank", None):
            return None
        self.first = self.first or report
        if not self.stops or report.nodeid == self.first.nodeid:  # pytest may ask twice
            return None
        self.more.add(report.nodeid)
        return "more", "F", "FAILED"  # a kind of its own, of which nothing is shown

    def pytest_unconfigure(self, config: pytest.Config) -> None:
        """Writes the last lines, after pytest's own."""
        reporter = config.pluginmanager.get_plugin("terminalreporter")
        if self.first is None or reporter is None:
            return
        if self.more:
            reporter.write_line(f"{len(self.more)} more fail: --all shows all of them")
        reporter.write_line(*self.last_lines(), red=True)

    def last_lines(self) -> list[str]:
        """The message of the first failure, if there is one."""
        return [message_of(self.first)] if self.first else []

    @pytest.hookimpl(wrapper=True, tryfirst=True)  # around the grader, which marks blanks
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo):
        report = yield
        if report.failed and not getattr(report, "blank", None) and task_of(item):
            self.failed = self.failed or item
        task = task_of(item)
        if task and call.excinfo and call.excinfo.type is TestTookTooLong:
            self.slow.add(task)
        return report

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> None:
        if (task := task_of(item)) in self.slow:
            raise TestTookTooLong(f"not run: an earlier test of task {task} took too long")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None):
        result = yield
        if self.stops and self.failed and nextitem and (self.slow or _group(nextitem) != _group(self.failed)):
            task = task_of(self.failed)
            item.session.shouldfail = f"task {task} fails: later tests were not run; --all runs them too"
        return result
