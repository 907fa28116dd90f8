"""The matrix of kills: which tests of its task fail on each wrong solution.

Two wrong solutions that exactly the same tests kill prove the same of the tests, and a test that kills nothing that
another one does not kill may prove nothing of its own.
"""

import json
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from rich.console import Console
from rich.progress import track

from tiny_llm_course.address import Day
from tiny_llm_course.trace.provenance import provenance
from tiny_llm_engine.machine.repo import BACKENDS

from .in_process import DayTests, with_day_tests
from .mutants import Mutant, edits_of

SECONDS = 20  # per test: some wrong solutions never end, and the first test that fails does not end this run


def write_matrix(console: Console, days: Sequence[Day], backends: list[str], file: Path) -> None:
    """Run every test of a mutant's task on each mutant of `days`, and write which of them fail, as JSON.

    For each task: the names of its tests without their port, and for each mutant and part the numbers of those that
    fail, as ranges: "0-3 7".
    """
    work = edits_of(days, backends, console)
    found = with_day_tests(
        days,
        backends,
        "ref",
        lambda tests: [failures(tests, *one, backends[0]) for one in track(work, "mutants", console=console)],
        time_limit=SECONDS,
    )
    rows = [(mutant, part, failed) for (mutant, part), failed in zip(work, found, strict=True)]
    rows.sort(key=lambda row: row[0].address)
    tasks = {task: _of_task([*group]) for task, group in groupby(rows, lambda row: row[0].task)}
    lines = [f"{json.dumps(task)}: {json.dumps(kills, ensure_ascii=False)}" for task, kills in tasks.items()]
    origin = json.dumps(provenance("cpu"))
    text = f'{{"provenance": {origin},\n"tasks": {{\n' + ",\n".join(lines) + "\n}}\n"
    file.write_text(text, encoding="utf-8")


def failures(tests: DayTests, mutant: Mutant, part: str, backend: str) -> dict[str, bool]:
    """Whether each test of the mutant's task fails on it, by name without the port."""
    tests.solution.put(mutant.mutate(part))
    port = part if part in BACKENDS else backend
    return {name: found.status != "passed" for name, found in tests.outcomes_of(mutant.address, port)}


def _of_task(rows: list[tuple[Mutant, str, dict[str, bool]]]) -> dict:
    names = [*dict.fromkeys(name for *_, failed in rows for name in failed)]
    mutants = {mutant: {"idea": mutant.idea} for mutant, *_ in rows}
    for mutant, part, failed in rows:
        mutants[mutant][part] = ranges([names.index(name) for name, fails in failed.items() if fails])
    return {"tests": names, "mutants": [*mutants.values()]}


def ranges(numbers: list[int]) -> str:
    """Numbers as ranges: [0, 1, 2, 7] is "0-2 7"."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return " ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
