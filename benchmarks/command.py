"""The frame of every benchmark command: find the port, measure with a bar, print the tables, keep the result."""

import argparse
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tiny_llm_course.capabilities import choose_backend
from tiny_llm_course.trace import provenance
from tiny_llm_course.trace.serve import NoEnd
from tiny_llm_engine.machine.terminal import ends_at, write_file
from tiny_llm_engine.solutions.port import Port
from tiny_llm_engine.solutions.solution import SOLUTIONS

from . import reports


class RunProgress(Protocol):
    """A listener for each run that begins, and for the number of runs if that is known."""

    def __call__(self, what: str, total: int | None = None) -> object: ...


def port_of(options: argparse.Namespace) -> Port:
    """The port that a benchmark's options ask for; "auto" is the learner's."""
    backend = choose_backend(options.solution, options.backend)
    return Port(SOLUTIONS[options.solution], backend, options.device, options.dtype)


def carry_out(
    kind: str,
    options: argparse.Namespace,
    argv: list[str] | None,
    measure: Callable[[RunProgress], Mapping[str, Any]],
) -> None:
    """Measure, and show the result; keeps it where `--json` and `--save` say. Wrong input ends with one line."""
    with ends_at(ImportError, ValueError, NoEnd), progress_bar() as report:
        result = {**measure(report), "command": f"bench-{kind}"}
    console = Console()
    reports.show(console, result)
    if options.save:
        provenance.keep(console, result, options.save, argv)
    if options.json:
        write_file(options.json, json.dumps(result, indent=1) + "\n")


@contextmanager
def progress_bar() -> Iterator[RunProgress]:
    """A bar on standard error for the runs that are reported; none where that is no terminal."""
    console, done = Console(stderr=True), count()
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    # Once a second: a bar that is drawn more often takes time from what is measured.
    with Progress(
        *columns, console=console, disable=not console.is_terminal, refresh_per_second=1, transient=True
    ) as bar:
        task = bar.add_task("starting", total=None)

        def report(what: str, total: int | None = None) -> None:
            bar.update(task, description=what, total=total, completed=next(done))

        yield report
