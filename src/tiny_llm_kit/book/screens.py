"""The screens in the book, captured from the commands that it shows; `--check` says whether one has changed.

A day's screen is `show(b, console)` of `tiny_llm_kit/see/week_W_day_D.py`, run for the reference on a console of
fixed width. Both ports must print the same. Other screens are the output of a command (`COMMANDS`).

A day that measures names in `VARIES`, a tuple of patterns, what differs from run to run or from port to port. The book
shows one run and only the rest is compared; that run stays until its file is deleted or the rest changes.
"""

import difflib
import html
import importlib
import io
import os
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

from .. import see
from ..port import Port
from ..repo import BOOK, ROOT, installed_backends

FOLDER = BOOK / "src" / "screens"
COLUMNS = 88


class Screen(NamedTuple):
    """A screen in the book: the file's name, what it holds, and patterns of what is not compared."""

    name: str
    fragment: str
    varies: tuple[str, ...] = ()

    def compared(self, fragment: str) -> str:
        """`fragment` without what differs from run to run."""
        return re.sub("|".join(self.varies), "…", fragment) if self.varies else fragment

    def differs(self, kept: str) -> bool:
        return self.compared(kept) != self.compared(self.fragment)


@dataclass(frozen=True)
class Command:
    """A command whose output the book shows. What differs from run to run is masked by the `mask` patterns."""

    name: str
    shown: str
    args: tuple[str, ...]
    exit_code: int = 0
    mask: tuple[str, ...] = ()


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
)


def capture(screens: Iterable[Screen], folder: Path = FOLDER) -> Iterator[Path]:
    """Write every screen into `folder`; yields the files that changed."""
    for screen in screens:
        file = folder / f"{screen.name}.html"
        if not file.exists() or screen.differs(file.read_text(encoding="utf-8")):
            file.write_text(screen.fragment, encoding="utf-8")
            yield file


def differences(screens: Iterable[Screen], folder: Path = FOLDER) -> Iterator[str]:
    """For each screen that is not what the book shows, a diff of its text."""
    for screen in screens:
        file = folder / f"{screen.name}.html"
        kept = file.read_text(encoding="utf-8") if file.exists() else ""
        if screen.differs(kept):
            lines = diff(screen.compared(kept), screen.compared(screen.fragment), file.name)
            yield "\n".join(lines) or f"{file.name}: the colours differ"


def diff(kept: str, fresh: str, name: str) -> Iterator[str]:
    def lines(fragment: str) -> list[str]:
        return html.unescape(re.sub(r"<[^>]*>", "", fragment)).splitlines()

    return difflib.unified_diff(
        lines(kept), lines(fresh), f"{name}, in the book", f"{name}, now", lineterm="", n=1
    )


def day_screens(backend: str, modules: Iterable[ModuleType] | None = None) -> Iterator[Screen]:
    """The screen of every day that has one, drawn by the reference on one port."""
    port = Port("tiny_llm_ref", backend, device="cpu")
    for module in see_modules() if modules is None else modules:
        week, day = re.search(r"week_(\d+)_day_(\d+)$", module.__name__).groups()
        console = recording_console(f"pdm run see {week}.{day}")
        module.show(port, console)
        yield Screen(f"week{week}-{int(day):02}", fragment(console), getattr(module, "VARIES", ()))


def shown_on(module: ModuleType) -> str:
    """The port whose measurements the book shows: `SHOWN_ON` of the day, where it is installed."""
    wanted, installed = getattr(module, "SHOWN_ON", None), installed_backends()
    return wanted if wanted in installed else installed[0]


def see_modules() -> Iterator[ModuleType]:
    for info in pkgutil.iter_modules(see.__path__):
        if re.fullmatch(r"week_\d+_day_\d+", info.name):
            yield importlib.import_module(f"{see.__name__}.{info.name}")


def command_screens(commands: Iterable[Command] = COMMANDS) -> Iterator[Screen]:
    """The screen of every command's output. Raises RuntimeError when one ends with an unexpected exit code."""
    for command in commands:
        console = recording_console(command.shown)
        console.print(Text.from_ansi(output(command)))
        yield Screen(command.name, fragment(console))


def output(command: Command) -> str:
    module, *args = command.args
    environment = {**os.environ, "COLUMNS": str(COLUMNS), "PYTHONUTF8": "1", "HF_HUB_OFFLINE": "1"}
    run = subprocess.run(
        [sys.executable, "-m", f"tiny_llm_kit.commands.{module}", *args],
        cwd=ROOT,
        env=environment,
        encoding="utf-8",
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
    )
    if run.returncode != command.exit_code:
        raise RuntimeError(f"`{command.shown}` ended with {run.returncode}:\n{run.stdout[-2000:]}")
    return re.sub("|".join(command.mask), "…", run.stdout) if command.mask else run.stdout


def recording_console(command: str) -> Console:
    """A console that remembers what it prints, the same on every machine; it begins with the command's own line."""
    console = Console(
        record=True,
        width=COLUMNS,
        file=io.StringIO(),
        force_terminal=True,
        color_system="truecolor",
        legacy_windows=False,
        highlight=False,
    )
    console.print(Text.assemble(("$ ", "green"), (command, "bold")), soft_wrap=True)
    return console


def fragment(console: Console) -> str:
    """What the console printed, as one `<pre>` for a chapter to include."""
    code = console.export_html(theme=MONOKAI, code_format="{code}", inline_styles=True)
    lines = [line.rstrip() for line in code.splitlines()]
    return '<pre class="screen" tabindex="0">' + "\n".join(lines).strip("\n") + "\n</pre>\n"


def capture_all() -> Iterator[Screen]:
    """Every screen of the book, drawn on one port."""
    for module in see_modules():
        yield from day_screens(shown_on(module), [module])
    yield from command_screens()


def check_all() -> Iterator[str]:
    """What differs between the book's screens and what the commands print now, on every port of this machine."""
    for backend in installed_backends():
        for difference in differences(day_screens(backend)):
            yield f"[{backend}] {difference}"
    yield from differences(command_screens())
