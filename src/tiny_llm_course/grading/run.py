"""Turns `--week --day --task --backend` into one pytest run; shared by `test` and `test-refsol`."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tiny_llm_engine.machine.repo import BACKENDS, ROOT
from tiny_llm_engine.machine.terminal import ends_at, fail
from tiny_llm_engine.solutions.port import Port
from tiny_llm_engine.solutions.solution import SOLUTIONS
from tiny_llm_extensions.arguments import DEVICES

from ..address import Day
from ..tree import day_tests, days, tasks


def parser(prog: str, description: str | None) -> argparse.ArgumentParser:
    """The options that both commands have."""
    epilog = "more arguments go to pytest, after --"
    top = argparse.ArgumentParser(prog=prog, description=description, epilog=epilog)
    for option in ("--week", "--day", "--task"):
        top.add_argument(option, type=int)
    top.add_argument("--backend", choices=[*BACKENDS, "all"])
    top.add_argument("--device", default="cpu", choices=DEVICES)
    return top


def parse(top: argparse.ArgumentParser, argv: Sequence[str] | None) -> tuple[argparse.Namespace, list[str]]:
    """The command's own options, and pytest's arguments, which come after `--`."""
    given = list(sys.argv[1:] if argv is None else argv)
    end = given.index("--") if "--" in given else len(given)
    options, unknown = top.parse_known_args(given[:end])
    if unknown:
        how = "name a day as --week 1 --day 2, and pytest's own arguments after --"
        top.error(f"{unknown[0]}: unknown; {how}")
    return options, given[end + 1 :]


def selected_days(week: int | None, day: int | None, task: int | None) -> list[Day]:
    """The days that the options name; empty when they name none.

    Raises:
        SystemExit: 2, with one line, for a day or a task that the course does not have.
    """
    if week is None and (day is not None or task is not None):
        fail("--day and --task need --week")
    if day is None and task is not None:
        fail("--task needs --day")
    found = [d for d in days() if week is not None and d.week == week and day in (None, d.day)]
    if week is not None and not found:
        wanted = f"week {week}" + (f" day {day}" if day is not None else "")
        fail(f"the course has no {wanted}; its days are {', '.join(map(str, days()))}")
    if task is not None and (week, day, task) not in tasks():
        numbers = [str(t.number) for t in tasks() if t.of_day == found[0]]
        fail(f"day {found[0]} has no task {task}; its tasks are {', '.join(numbers)}")
    return found


def run(
    solution: str,
    backends: list[str],
    paths: list[Path],
    options: argparse.Namespace,
    pytest_arguments: list[str],
    extra: Sequence[str] = (),
) -> int:
    """Run pytest on `paths` and return the exit code; no test selected is an error."""
    for backend in backends:
        check_port(solution, backend, options.device)
    arguments = [*map(str, paths), f"--rootdir={ROOT}", f"-c{ROOT}/pyproject.toml", f"--solution={solution}"]
    arguments += ["-p", "tiny_llm_course.grading.plugin", f"--backends={','.join(backends)}"]
    arguments += [f"--device={options.device}", *extra]
    if options.task is not None:
        arguments.append(f"--task={options.week}.{options.day}.{options.task}")
    status = pytest.main([*arguments, "-q", *pytest_arguments])
    if status == pytest.ExitCode.NO_TESTS_COLLECTED:
        fail("no test was selected: a run without tests does not pass")
    return int(status)


@ends_at(ValueError)
def check_port(solution: str, backend: str, device: str) -> None:
    """End with one line, instead of one error per test, if a port or its device is missing or cannot be imported."""
    Port(SOLUTIONS[solution], backend, device)


def files_of(chosen: list[Day]) -> list[Path]:
    missing = [day for day in chosen if not day_tests(day)]
    if missing:
        fail(f"day {missing[0]} has no tests: tests/test_{missing[0].slug}.py is missing")
    return [file for day in chosen for file in day_tests(day)]
