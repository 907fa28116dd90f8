"""The prefix check: a learner at day N is graded only on what they can have written.

With days ≤ N solved and the rest blank, the tests of day N pass; so do those of one sitting of a large day, with only
the sittings up to it solved. With one task alone blank, each of its own tests stops at that very task.

So each test of day N also fails while the whole day is blank: up to the first blank of the day, it runs what it ran in
those two runs. No solution asks whether a task is blank.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from rich.console import Console
from rich.progress import track

from tiny_llm_course.address import Day, Task, task_of_label
from tiny_llm_course.cut import cut
from tiny_llm_course.pages import sittings_of
from tiny_llm_course.trace.text import counted
from tiny_llm_course.tree import days, exercises_of, learner_file, reference_files, tasks

from .in_process import DayTests, with_day_tests

SHOWN = 8  # problems of one run that are printed


@dataclass
class Finding:
    """The findings of one run of the check; no `problems` if the course is in order."""

    name: str
    tests: int
    problems: list[str]


def course_with(blank: Callable[[Task], bool]) -> dict[Path, str]:
    """The learner's package with some tasks blank and the others solved."""
    return {
        learner_file(file): _cut(
            file, frozenset(exercise.task for exercise in exercises_of(file) if blank(exercise.task))
        )
        for file in reference_files()
    }


@cache
def _cut(reference: Path, blank: frozenset[Task]) -> str:
    """The files' stubs with these tasks blank.

    Each file is cut once per set of its tasks, because most runs of the check share most files.
    """
    return cut(reference.read_text(encoding="utf-8"), reference, lambda task: task in blank)


def _solved_until(tests: DayTests, day: Day, number: int) -> Finding:
    """Check with days before `day` and its first `number` sittings solved: the last sitting's tests must pass.

    Tests of earlier days and sittings have passed with less solved. They met no blank, so none of the code they run is
    new.
    """
    sittings = sittings_of(day)
    solved = {task for sitting in sittings[:number] for task in sitting}
    tests.solution.put(course_with(lambda task: task.of_day >= day and task not in solved))
    outcomes = [outcome for task in sittings[number - 1] for outcome in tests.run(task)]
    problems = [f"{o.nodeid}: {o.message.splitlines()[0]}" for o in outcomes if o.status != "passed"]
    what = "all days up to it" if len(sittings) == 1 else f"its sittings up to {number}"
    return Finding(f"day {day}, with {what} solved", len(outcomes), problems)


def _blank_alone(tests: DayTests, task: Task) -> Finding:
    """Check with all but one task solved: each test of this task must stop at it."""
    tests.solution.put(course_with(lambda other: other == task))
    outcomes = tests.run(task)
    wrong = [o for o in outcomes if (task_of_label(o.message) or [None])[0] != task]
    problems = [f"{o.nodeid} does not need its task: {o.status}" for o in wrong]
    return Finding(f"task {task} alone blank", len(outcomes), problems)


def _runs() -> list[Callable[[DayTests], Finding]]:
    """Every run of the check."""
    solved = [
        partial(_solved_until, day=day, number=n + 1) for day in days() for n in range(len(sittings_of(day)))
    ]
    return [*solved, *(partial(_blank_alone, task=task) for task in tasks())]


def report_prefix(console: Console, backends: list[str]) -> int:
    """Run the check with a progress bar, and print a line per run and each problem; return 1 if there is any.

    Each run tests every port at once, and so the policy, which they share, once.
    """

    def work(tests: DayTests) -> list[Finding]:
        return [run(tests) for run in track(_runs(), "prefix check", console=console)]

    findings = with_day_tests(days(), backends, "tiny_llm", work)
    for finding in findings:
        mark = "[red]wrong[/]" if finding.problems else "[green]right[/]" if finding.tests else "not tested"
        console.print(f"{mark} {finding.name}: {counted(finding.tests, 'test')}")
        for problem in finding.problems[:SHOWN]:
            console.print(f"  {problem}", style="red", markup=False, soft_wrap=True)
        if len(finding.problems) > SHOWN:
            console.print(f"  … and {len(finding.problems) - SHOWN} more", style="red")
    return 1 if any(finding.problems for finding in findings) else 0
