"""Screens that are the output of a command, run as a reader would run it."""

import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from rich.text import Text

from tiny_llm_engine.machine.repo import ROOT, command_modules

from .console import COLUMNS, fragment, recording_console

# Environment variables that an author may have set, and a reader has not.
THEIRS = ("FORCE_COLOR", "NO_COLOR", "PY_COLORS", "PYTEST_ADDOPTS", "TTY_COMPATIBLE")


@dataclass(frozen=True)
class Command:
    """A command whose output the book shows.

    Text that varies is masked if it matches a `mask` pattern. If it matches a `measured` pattern, it is shown and not
    compared.
    """

    name: str
    shown: str
    args: tuple[str, ...]
    exit_code: int = 0
    mask: tuple[str, ...] = ()
    measured: tuple[str, ...] = ()


COMMANDS = (
    Command(
        name="first-test",  # needs the blank stubs, as they are committed
        shown="pdm run test --week 1 --day 1",
        args=("test", "--week", "1", "--day", "1", "--backend", "mlx", "--device", "cpu"),
        exit_code=1,
        mask=(r"\d+\.\d+(?=s\b)",),
    ),
    Command(
        name="first-run",
        shown='pdm run main --solution ref --prompt "What is chunked prefill?"',
        args=("main", "--solution", "ref", "--prompt", "What is chunked prefill?", "--backend", "mlx"),
        mask=(r"\d+(\.\d+)?(?= ?(ms|s|tokens/s|tok/s)\b)", r"\b(mlx|cpu|gpu)\b"),
    ),
    Command(
        name="week2-07-graphs",
        shown="pdm run see 2.7 --graphs",
        args=("see", "2.7", "--graphs", "--solution", "ref", "--device", "cpu"),
    ),
    Command(
        name="demo",
        shown="pdm run demo",
        args=("demo", "--demo", "sync", "--backend", "torch", "--device", "cpu"),
        measured=(r"won: .*; lost: .*", r" *\d+\.\d+", r"[+−±-]?\d+ %"),
    ),
)


def command_screens(commands: Iterable[Command] = COMMANDS) -> Iterator[tuple[str, str]]:
    """`(name, fragment)` of every command's output. Raises RuntimeError when one ends with an unexpected exit code."""
    for command in commands:
        console = recording_console(command.shown)
        console.print(Text.from_ansi(output(command)))
        yield command.name, fragment(console, command.measured)


def output(command: Command) -> str:
    name, *args = command.args
    environment = {name: value for name, value in os.environ.items() if name not in THEIRS}
    environment |= {"COLUMNS": str(COLUMNS), "PYTHONUTF8": "1", "HF_HUB_OFFLINE": "1"}
    run = subprocess.run(
        [sys.executable, "-m", command_modules()[name], *args],
        cwd=ROOT,
        env=environment,
        encoding="utf-8",
        capture_output=True,
        stdin=subprocess.DEVNULL,
    )
    if run.returncode != command.exit_code:
        raise RuntimeError(
            f"`{command.shown}` ended with {run.returncode}:\n{(run.stdout + run.stderr)[-2000:]}"
        )
    return re.sub("|".join(command.mask), "…", run.stdout) if command.mask else run.stdout
