"""Grades one submission: one process a day, each in a fresh copy, and points for the tests that passed.

Which tests there are is asked of our own copy, never of the submission's process. A test whose result is missing has
not passed.
"""

import json
import os
import shutil
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tiny_llm_course.address import Day, Task
from tiny_llm_course.cut import is_blank
from tiny_llm_course.grading.results import NOT_RUN, RUNNING, TaskResult, as_json, tasks_of
from tiny_llm_course.tree import LEARNER, exercises_of_part, learner_file, parts_of
from tiny_llm_engine.machine.installation import default_port, installed_backends
from tiny_llm_engine.machine.repo import ROOT
from tiny_llm_engine.machine.terminal import FatalError

from ..export import export
from .cage import Ended, Limits, has_namespaces, run
from .folders import remove_stale_folders, temporary_folder
from .submission import Submission

NEEDED = ("pyproject.toml", "src", "tests", "models", "book/src")  # the book has titles and minutes
START_SECONDS = 60  # of a process before its first test, on a busy machine
# Of other tools of this environment, which only cost time.
PLUGINS = [option for name in ("anyio", "schemathesis", "xdist") for option in ("-p", f"no:{name}")]
RESULTS, LARGEST = "results.json", 10_000_000  # bytes
LIBRARIES = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]


@dataclass(frozen=True)
class Rules:
    """What is graded, and how much a test may take."""

    days: Sequence[Day]
    backend: str | None = None  # None: the port with more answers
    seconds: int = 20  # per test
    memory: int = 4_000_000_000  # bytes, of one day's process and all that it starts


@dataclass
class Clean:
    """A copy of the course without reference and answers, that no submission has touched, and its tests by port."""

    folder: Path
    tests: dict[str, dict[Task, list[str]]] = field(default_factory=dict)

    def tests_of(self, port: str, rules: Rules) -> dict[Task, list[str]]:
        """The tests of each task on a port, as pytest collects them here."""
        if port not in self.tests:
            found: dict[Task, list[str]] = {}
            for week in sorted({day.week for day in rules.days}):
                options = ["--week", str(week), "--backend", port, "--", "--collect-only", *PLUGINS]
                results, ended = self.graded(self.folder, options, rules, START_SECONDS)
                if not results:
                    raise FatalError(f"week {week}: no tests: {ended.why}: {ended.last_line}")
                found |= {task: [*result.tests] for task, result in results.items()}
            self.tests[port] = found
        return self.tests[port]

    def graded(
        self, folder: Path, options: Sequence[str], rules: Rules, seconds: float
    ) -> tuple[dict[Task, TaskResult], Ended]:
        """Run `pdm run test` with options in a copy of the course; no results when it wrote none."""
        file = folder / RESULTS
        command = [sys.executable, "-S", "-m", "tiny_llm_course.commands.test", "--all", f"--json={file}"]
        limits = Limits(seconds, rules.memory)
        ended = run(
            [*command, f"--time-limit={rules.seconds}", *options], folder, _environment(folder), limits
        )
        return _read(file), ended


def _read(file: Path) -> dict[Task, TaskResult]:
    """What a process has written, which may be anything, and remove it; empty if it is no file of results."""
    try:
        if file.is_symlink() or not file.is_file() or file.stat().st_size > LARGEST:
            return {}
        text = file.read_text(encoding="utf-8")
        file.unlink()
        return tasks_of(json.loads(text))
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return {}


def _environment(folder: Path) -> dict[str, str]:
    """The whole environment of a process: `-S` and this path leave out the folder of the reference."""
    path = os.pathsep.join([str(folder / "src"), *LIBRARIES])
    own = dict.fromkeys(("HOME", "TMPDIR", "XDG_CACHE_HOME"), str(folder))
    return {"PATH": os.environ.get("PATH", os.defpath), "PYTHONPATH": path, "LANG": "C.UTF-8", **own}


@contextmanager
def clean_copy() -> Iterator[Clean]:
    """A clean copy, as long as the context lasts."""
    remove_stale_folders()
    with temporary_folder() as folder:
        export(Path(folder), NEEDED)
        yield Clean(Path(folder))


def grade(submission: Submission, clean: Clean, rules: Rules) -> dict[str, Any]:
    """The results of a submission: the content of a file of results, with `submission` and how it was run.

    Days without any answer are not run: every test of a blank task fails, which the prefix check proves.
    """
    answers = {
        port: answered(submission, port)
        for port in ([rules.backend] if rules.backend else installed_backends())
    }
    port = max(answers, key=lambda name: (len(answers[name]), name == default_port()))
    found: dict[Task, TaskResult] = {}
    runs: list[Ended] = []
    for task, names in clean.tests_of(port, rules).items():
        if task.of_day in rules.days:
            found[task] = TaskResult(dict.fromkeys(names, NOT_RUN), "blank")
    for day in rules.days:
        if any(task.of_day == day for task in answers[port]):
            runs += _grade_day(day, submission, clean, port, rules, found)
    facts = {
        "name": submission.name,
        "port": port,
        "ignored": submission.ignored,
        "caged": has_namespaces(),
        "seconds": round(sum(ended.seconds for ended in runs), 1),
        "memory_mb": max((ended.memory for ended in runs), default=0) // 10**6,
    }
    return {**as_json(found, complete=True), "submission": facts}


def answered(submission: Submission, port: str) -> set[Task]:
    """The tasks with an exercise that is no longer blank. An absent file counts as its stub."""
    texts = {path: data.decode("utf-8", "replace") for path, data in submission.sources.items()}
    pairs = [pair for part in parts_of([port]) for pair in exercises_of_part(part)]
    return {
        one.task
        for file, one in pairs
        if (text := texts.get(learner_file(file).relative_to(LEARNER))) and not is_blank(text, one)
    }


def _grade_day(
    day: Day, submission: Submission, clean: Clean, port: str, rules: Rules, found: dict[Task, TaskResult]
) -> list[Ended]:
    """Run the tests of a day and put their results into `found`.

    A process that ends early has ended in some test. The tests of other tasks get another process, unless two in a row
    came to the end of no test.
    """
    pending, runs, fruitless = [task for task in sorted(found) if task.of_day == day], [], 0
    for task in pending:
        found[task].first_failure = None
    while pending:
        results, ended = _run(pending, submission, clean, port, rules)
        runs.append(ended)
        for task in pending:
            _take(found[task], results.get(task))
        left = [task for task in pending if {NOT_RUN, RUNNING} & {*found[task].tests.values()}]
        fruitless = 0 if _finished(results) else fruitless + 1
        if not left:
            break
        died = next((task for task in left if RUNNING in found[task].tests.values()), left[0])
        for task in left if fruitless == 2 or not results else [died]:
            found[task].first_failure = found[task].first_failure or ended.why
            found[task].tests = {n: NOT_RUN if r == RUNNING else r for n, r in found[task].tests.items()}
        pending = [] if fruitless == 2 or not results else [task for task in left if task != died]
    return runs


def _take(own: TaskResult, told: TaskResult | None) -> None:
    """Take over what a process says of the tests that we know; it may say anything."""
    if told is None:
        return
    known = {name: str(told.tests.get(name, NOT_RUN)) for name in own.tests}
    own.tests = {
        name: result if known[name] == NOT_RUN else known[name] for name, result in own.tests.items()
    }
    own.first_failure = own.first_failure or told.first_failure


def _finished(results: Mapping[Task, TaskResult]) -> bool:
    """Whether a process came to the end of a test."""
    outcomes = Counter(result for task in results.values() for result in task.tests.values())
    return outcomes.total() > outcomes[NOT_RUN] + outcomes[RUNNING]


def _run(
    tasks: Sequence[Task], submission: Submission, clean: Clean, port: str, rules: Rules
) -> tuple[dict[Task, TaskResult], Ended]:
    """Run the tests of some tasks of one day in a copy of their own."""
    week, day = tasks[0].of_day
    options = [f"--week={week}", f"--day={day}", f"--backend={port}", "--", *PLUGINS]
    with temporary_folder() as temporary:
        folder = Path(temporary) / "course"
        shutil.copytree(clean.folder, folder)
        for path, data in submission.sources.items():
            file = folder / LEARNER.relative_to(ROOT) / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)
        seconds = START_SECONDS + rules.seconds * len(tasks)
        return clean.graded(folder, [*options, *(f"--task={task}" for task in tasks)], rules, seconds)
