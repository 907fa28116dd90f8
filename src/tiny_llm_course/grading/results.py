"""`pdm run test --json FILE`: the results of a run, task by task. `docs/grading.md` explains the fields."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from ..address import Task
from ..pages import titles_and_minutes
from .order import message_of, task_of

SCHEMA, VERSION = "tiny-llm/results", 1  # of the file; a field that changes its meaning raises the version
PASSED, FAILED, RUNNING, NOT_RUN = "passed", "failed", "running", "not run"


@dataclass
class TaskResult:
    """The tests of one task, each with its result, and the sentence of the first that failed."""

    tests: dict[str, str] = field(default_factory=dict)
    first_failure: str | None = None

    def failing(self) -> list[str]:
        """Every test that has not passed: one that was never run earns nothing either."""
        return [name for name, result in self.tests.items() if result != PASSED]


def as_json(tasks: Mapping[Task, TaskResult], complete: bool) -> dict[str, Any]:
    """The content of a file of results.

    Args:
        complete: the run came to its end, so no test is missing.
    """
    facts: dict[Task, tuple[str, int]] = {}
    for day in sorted({task.of_day for task in tasks}):
        facts |= titles_and_minutes(day)
    rows = [_row(task, tasks[task], *facts.get(task, ("", 0))) for task in sorted(tasks)]
    sums = {name: round(sum(row[name] for row in rows), 2) for name in ("points", "possible")}
    return {"schema": SCHEMA, "version": VERSION, "complete": complete, **sums, "tasks": rows}


def _row(task: Task, result: TaskResult, title: str, minutes: int) -> dict[str, Any]:
    failing, count = result.failing(), len(result.tests)
    return {
        "task": str(task),
        "title": title,
        "points": round(minutes * (count - len(failing)) / count, 2),
        "possible": minutes,
        "passed": not failing,
        "failing": failing,
        "first_failure": result.first_failure,
        "tests": result.tests,
    }


class ResultFile:
    """A pytest plugin that writes the results, again after every test: a process that dies leaves what it has.

    A process that the code under test forks writes nothing.
    """

    def __init__(self, file: Path):
        self.file, self.process = file, os.getpid()
        self.tasks: dict[Task, TaskResult] = {}
        self.of_test: dict[str, TaskResult] = {}

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            if task := task_of(item):
                result = self.of_test[item.nodeid] = self.tasks.setdefault(task, TaskResult())
                result.tests[item.nodeid] = NOT_RUN
        self._write()

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._set(nodeid, RUNNING)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not report.passed:
            self._set(report.nodeid, FAILED, message_of(report))
        elif report.when == "call":
            self._set(report.nodeid, PASSED)

    def pytest_sessionfinish(self) -> None:
        self._write()

    def _set(self, nodeid: str, result: str, message: str | None = None) -> None:
        if task := self.of_test.get(nodeid):
            task.tests[nodeid] = result
            task.first_failure = task.first_failure or message
            self._write()

    def _write(self) -> None:
        """Replace the file at once, so that a reader never sees half of it."""
        if os.getpid() == self.process:
            results = [result for task in self.tasks.values() for result in task.tests.values()]
            complete = not {RUNNING, NOT_RUN} & {*results}
            beside = self.file.with_name(f"{self.file.name}.new")
            beside.write_text(json.dumps(as_json(self.tasks, complete), indent=1) + "\n", encoding="utf-8")
            beside.replace(self.file)


def tasks_of(data: Mapping[str, Any]) -> dict[Task, TaskResult]:
    """The tasks of a file's content, to add up those of several runs.

    Raises:
        LookupError, TypeError, ValueError or AttributeError: it is no such content.
    """
    return {Task(*map(int, row["task"].split("."))): _result_of(row) for row in data["tasks"]}


def _result_of(row: Mapping[str, Any]) -> TaskResult:
    failure = row["first_failure"]
    tests = {str(name): str(result) for name, result in row["tests"].items()}
    return TaskResult(tests, None if failure is None else str(failure))
