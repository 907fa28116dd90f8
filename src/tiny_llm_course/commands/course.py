"""`pdm run course …`: a learner's progress. `authors/course.py` adds the authors' commands."""

import argparse
import sys
from collections.abc import Callable

from rich.console import Console
from rich.table import Table

from tiny_llm_engine.machine.installation import installed_backends
from tiny_llm_engine.machine.repo import BACKENDS, ROOT
from tiny_llm_engine.machine.terminal import fail
from tiny_llm_extensions.arguments import whole_number

from ..address import Day, Task, parse_day, parse_task
from ..answers import other_port
from ..capabilities import learner_port, ports_of, set_learner_port
from ..learner import missing_functions, reset, skip, states
from ..pages import hints, pages_of
from ..tree import ANSWERS, parts_of, tasks

console = Console(highlight=False, emoji=False)  # the codes of all emoji take a while to import
Run = Callable[[argparse.Namespace], None]
AddCommand = Callable[[str, Run, str], argparse.ArgumentParser]
COLOURS = {"blank": "yellow", "filled": "cyan", "unknown": "magenta", "green": "green"}


def parts(choice: str | None) -> list[str]:
    """The parts that a command works on: the learner's port, or the requested one, and what all ports share."""
    return parts_of(ports_of(choice or learner_port()))


def status(options: argparse.Namespace) -> None:
    table = Table("day", "task", "port", "status", "to write", box=None, pad_edge=False)
    listed = states(parts(options.backend))
    for state in listed:
        status = f"[{COLOURS[state.status]}]{state.status}[/]"
        table.add_row(str(state.task.of_day), str(state.task), state.part, status, ", ".join(state.names))
    console.print(table)
    if line := other_port(ports_of(options.backend or learner_port())):
        console.print(line, style="yellow")
    counts = {name: sum(state.status == name for state in listed) for name in COLOURS}
    console.print("  ".join(f"{counts[name]} {name}" for name in COLOURS))


def port(options: argparse.Namespace) -> None:
    if options.port:
        set_learner_port(options.port)
    missing = [name for name in ports_of(learner_port()) if name not in installed_backends()]
    console.print(f"you work on: {learner_port()}")
    if missing:
        console.print(f"not installed here: {', '.join(missing)}; `pdm run doctor` says how", style="yellow")


def do_skip(options: argparse.Namespace) -> None:
    wanted = selection(options)
    if not ANSWERS.is_dir():
        fail("nothing to fill from: this copy of the course was handed out without its reference solution", 1)
    written = skip(parts(options.backend), wanted)
    for path in written:
        console.print(f"filled from the reference: {path.relative_to(ROOT)}")
    for path, name in missing_functions(parts(options.backend), wanted):
        missing = f"{path.relative_to(ROOT)}: no function {name}"
        console.print(f"{missing}; `course reset --whole-files` renews the file", style="yellow")
    if not written:
        console.print("nothing was blank there")


def do_reset(options: argparse.Namespace) -> None:
    try:
        changed, kept = reset(parts(options.backend), selection(options), options.whole_files)
    except LookupError as error:
        sys.exit(str(error))
    for path in changed:
        console.print(f"blank again: {path.relative_to(ROOT)}")
    if kept:
        console.print(f"your text is kept in {kept.relative_to(ROOT)}")
    if not changed:
        console.print("nothing to put back")


def hint(options: argparse.Namespace) -> None:
    from rich.markdown import Markdown  # takes a tenth of a second, and no other command needs it

    known(options.task)
    all_hints = hints(options.task)
    if not all_hints:
        written = pages_of(options.task.of_day)
        sys.exit(f"task {options.task} has no hints{'' if written else ': its chapter is not written yet'}")
    for number, hint in enumerate(all_hints[: options.number], 1):
        console.print(f"[bold]Hint {number} of {len(all_hints)}: {hint.title}[/]")
        console.print(Markdown(hint.text))
    if options.number < len(all_hints):
        console.print(f"more: pdm run course hint {options.task} {options.number + 1}", style="dim")


def selection(options: argparse.Namespace) -> Callable[[Task], bool]:
    """The tasks that `--week --day [--task]` or `--through` select.

    An unknown day or task ends the command with exit code 2.
    """
    chosen = [number for number in (options.week, options.day, options.task) if number is not None]
    if options.through:
        if chosen:
            fail("name days either with --through 1.2 or with --week 1 --day 2, not both")
        known(options.through)
        return lambda task: task.of_day <= options.through
    if options.week is None or options.day is None:
        fail("name a day: --week 1 --day 2, or --through 1.2")
    known(Day(*chosen) if options.task is None else Task(*chosen))
    return lambda task: list(task[: len(chosen)]) == chosen


def known(address: Day | Task) -> None:
    """End the command if the course has no such day or task."""
    if not any(tuple(task[: len(address)]) == tuple(address) for task in tasks()):
        present = sorted({str(task.of_day) for task in tasks()})
        kind = "task" if isinstance(address, Task) else "day"
        fail(f"the course has no {kind} {address}; its days are {', '.join(present)}")


def parser(description: str | None = __doc__) -> tuple[argparse.ArgumentParser, AddCommand]:
    """The parser of the learner's commands, and what adds another: `add(name, run, text)` returns its parser."""
    top = argparse.ArgumentParser(prog="pdm run course", description=description)
    commands = top.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, run: Run, text: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=text)
        sub.set_defaults(run=run)
        sub.add_argument("--backend", choices=[*BACKENDS, "all"], help="instead of the port you work on")
        return sub

    command("status", status, "day by day: blank, filled, unknown, green")
    command("port", port, "shows or sets the port you work on").add_argument(
        "port", nargs="?", choices=[*BACKENDS, "both"]
    )
    for name, run, text in (
        ("skip", do_skip, "fills blank tasks from the reference, as visible text"),
        ("reset", do_reset, "makes tasks blank again, after a backup"),
    ):
        sub = command(name, run, text)
        for option in ("--week", "--day", "--task"):
            sub.add_argument(option, type=int)
        if run is do_reset:
            whole = "renew the files, whatever is in them"
            sub.add_argument("--whole-files", action="store_true", help=whole)
        sub.add_argument("--through", type=parse_day, help="all days up to and including this one, as 1.3")
    sub = command("hint", hint, "the chapter's hints for a task, one more at a time")
    sub.add_argument("task", type=parse_task, help="for example 1.3.2")
    sub.add_argument("number", type=whole_number(1), nargs="?", default=1, help="how many hints to show")
    return top, command
