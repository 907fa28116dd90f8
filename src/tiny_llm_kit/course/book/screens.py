"""The screens in the book, captured from the commands that it shows; `--check` reports those that have changed.

A day's screen is `show(b, console)` of `tiny_llm_kit/course/see/week_W_day_D.py`, run for the reference on a console of
fixed width; a day in several sittings has a screen for each function in its `SITTINGS` (`week2-07a.html`). What only
one port has to show is `show_mlx` or `show_torch`, a screen of its own (`week2-01-torch.html`).
Both ports must print the same in `show`, but for what the module's `MEASURED` patterns match: seconds and the like,
which differ in every run. The book shows what was measured when the screen was captured, and comparing leaves it out;
to measure again, delete the file and capture. Other screens are the output of a command (`COMMANDS`).
"""

import difflib
import html
import importlib
import io
import json
import os
import pkgutil
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from string import ascii_lowercase
from types import ModuleType

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

from ...lab.bench import reports
from ...lab.bench.provenance import RESULTS, is_sealed
from ...lab.studies import chart
from ...repo import BOOK, ROOT
from ...runtime.port import Port, installed_backends
from .. import see
from . import batch_screen, roofline_screen, timeline_screen, tradeoff_screen, widget

FOLDER = BOOK / "src" / "screens"
COLUMNS = 88
SEE_COLUMNS = 80  # the width of a standard terminal
SHIPPED = "tiny-qwen3"


@dataclass(frozen=True)
class Command:
    """A command whose output the book shows. What changes from run to run is masked by the `mask` patterns, or is
    shown and not compared, by the `measured` ones."""

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


def capture(screens: Iterable[tuple[str, str]], folder: Path = FOLDER) -> Iterator[Path]:
    """Write every `(name, fragment)` into `folder`; yields the files that changed."""
    for name, fragment in screens:
        file = folder / f"{name}.html"
        if not file.exists() or unmeasured(file.read_text(encoding="utf-8")) != unmeasured(fragment):
            file.write_text(fragment, encoding="utf-8")
            yield file


def differences(screens: Iterable[tuple[str, str]], folder: Path = FOLDER) -> Iterator[str]:
    """For each screen that is not what the book shows, a diff of its text."""
    for name, fragment in screens:
        file = folder / f"{name}.html"
        kept = file.read_text(encoding="utf-8") if file.exists() else ""
        kept, fresh = unmeasured(kept), unmeasured(fragment)
        if kept != fresh:
            yield "\n".join(diff(kept, fresh, file.name)) or f"{file.name}: the colours differ"


def diff(kept: str, fresh: str, name: str) -> Iterator[str]:
    def lines(fragment: str) -> list[str]:
        return html.unescape(re.sub(r"<[^>]*>", "", fragment)).splitlines()

    return difflib.unified_diff(
        lines(kept), lines(fresh), f"{name}, in the book", f"{name}, now", lineterm="", n=1
    )


def day_screens(backend: str, modules: Iterable[ModuleType] | None = None) -> Iterator[tuple[str, str]]:
    """`(name, fragment)` of every day that has a screen, drawn by the reference on one port."""
    yield from _drawn(backend, modules, "show", "", "pdm run see {day}")


def port_screens(backend: str, modules: Iterable[ModuleType] | None = None) -> Iterator[tuple[str, str]]:
    """`(name, fragment)` of what a day shows on this port alone, below its screen."""
    yield from _drawn(
        backend, modules, f"show_{backend}", f"-{backend}", f"pdm run see {{day}} --backend {backend}"
    )


def _drawn(backend: str, modules: Iterable[ModuleType] | None, function: str, ending: str, command: str):
    port = Port("tiny_llm_ref", backend, device="cpu")
    for module in see_modules() if modules is None else modules:
        week, day = re.search(r"week_(\d+)_day_(\d+)$", module.__name__).groups()
        for letter, option, show in _shows(module, function):
            console = recording_console(command.format(day=f"{week}.{day}{option}"), SEE_COLUMNS)
            show(port, console)
            measured = getattr(module, "MEASURED", ())
            yield f"week{week}-{int(day):02}{letter}{ending}", fragment(console, measured)


def _shows(module: ModuleType, function: str) -> Iterator[tuple[str, str, Callable]]:
    """A day's screens with the letter of the page and the option of the command; both are empty for a small day."""
    sittings = getattr(module, "SITTINGS", ()) if function == "show" else ()
    for number, (letter, sitting) in enumerate(zip(ascii_lowercase, sittings, strict=False), 1):
        yield letter, f" --sitting {number}", sitting
    if not sittings and (show := getattr(module, function, None)):
        yield "", "", show


def shown_on(module: ModuleType) -> str:
    """The port whose measurements the book shows: `SHOWN_ON` of the day, where it is installed."""
    wanted, installed = getattr(module, "SHOWN_ON", None), installed_backends()
    return wanted if wanted in installed else installed[0]


def see_modules() -> Iterator[ModuleType]:
    for info in pkgutil.iter_modules(see.__path__):
        if re.fullmatch(r"week_\d+_day_\d+", info.name):
            yield importlib.import_module(f"{see.__name__}.{info.name}")


def batch_screens(backend: str) -> Iterator[tuple[str, str]]:
    """`(name, fragment)` of a batch at work."""
    console = recording_console(batch_screen.COMMAND)
    batch_screen.show(backend, console)
    yield "batch-main", fragment(console, batch_screen.MEASURED)


def timeline_screens() -> Iterator[tuple[str, str]]:
    """`(name, fragment)` of two runs in virtual time: as a terminal shows them, and as a drawing."""
    console = recording_console(timeline_screen.COMMAND)
    timeline_screen.show(console)
    yield "timeline", fragment(console)
    yield "week2-07-timeline", timeline_screen.drawing()


def widget_screens() -> Iterator[tuple[str, str]]:
    """`(name, fragment)` of the widgets' pictures for readers without JavaScript."""
    yield "week2-07-widget", widget.picture() + "\n"
    yield "week2-07-late-widget", widget.late_picture() + "\n"


def benchmark_screens() -> Iterator[tuple[str, str]]:
    """`(name, fragment)` of every benchmark that is kept, from its sealed file: nothing is measured again.

    Of a roofline there is a drawing, too, of the chunk sizes of the shipped model, and of a study with a chart.

    Raises:
        RuntimeError: a file is not what was sealed.
    """
    for file in sorted(RESULTS.glob("*.json")):
        result = json.loads(file.read_text(encoding="utf-8"))
        if not is_sealed(result):
            raise RuntimeError(f"{file.name} was changed after it was sealed: measure again")
        console = recording_console(reports.command_of(result))
        reports.show(console, result)
        yield f"benchmark-{file.stem}", fragment(console)
        if result["kind"] == "roofline":
            yield file.stem, roofline_screen.drawing(result)
        if result["kind"] == "chunked-prefill" and result["plan"]["model"] == SHIPPED:
            yield file.stem.replace("chunked-prefill", "tradeoff"), tradeoff_screen.drawing(result)
        if result.get("chart"):
            yield file.stem, chart.drawing(result)


def command_screens(commands: Iterable[Command] = COMMANDS) -> Iterator[tuple[str, str]]:
    """`(name, fragment)` of every command's output. Raises RuntimeError when one ends with an unexpected exit code."""
    for command in commands:
        console = recording_console(command.shown)
        console.print(Text.from_ansi(output(command)))
        yield command.name, fragment(console, command.measured)


def output(command: Command) -> str:
    module, *args = command.args
    environment = {**os.environ, "COLUMNS": str(COLUMNS), "PYTHONUTF8": "1", "HF_HUB_OFFLINE": "1"}
    run = subprocess.run(
        [sys.executable, "-m", f"tiny_llm_kit.commands.{module}", *args],
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


def recording_console(command: str, columns: int = COLUMNS) -> Console:
    """A console that remembers what it prints, the same on every machine; it begins with the command's own line."""
    console = Console(
        record=True,
        width=columns,
        file=io.StringIO(),
        force_terminal=True,
        color_system="truecolor",
        legacy_windows=False,
        highlight=False,
    )
    console.print(Text.assemble(("$ ", "green"), (shell_lines(command, columns), "bold")), soft_wrap=True)
    return console


def shell_lines(command: str, columns: int) -> str:
    """A command on lines that fit the console, as a shell takes them."""
    lines = textwrap.wrap(command, columns - 4, break_long_words=False, break_on_hyphens=False)
    return " \\\n    ".join(lines)


def fragment(console: Console, measured: tuple[str, ...] = ()) -> str:
    """What the console printed, as one `<pre>` for a chapter to include; `measured` patterns of its text are marked."""
    code = console.export_html(theme=MONOKAI, code_format="{code}", inline_styles=True)
    lines = [mark(line.rstrip(), measured) for line in code.splitlines()]
    return '<pre class="screen" tabindex="0">' + "\n".join(lines).strip("\n") + "\n</pre>\n"


def mark(line: str, measured: tuple[str, ...]) -> str:
    """Puts what the patterns match into `<span class="measured">`; tags are left alone."""
    if not measured:
        return line
    either = f"(<[^>]*>)|(?:{'|'.join(measured)})"
    return re.sub(either, lambda m: m[1] or f'<span class="measured">{m[0]}</span>', line)


def unmeasured(fragment: str) -> str:
    """The fragment without what differs in every run."""
    return re.sub(r'<span class="measured">[^<]*</span>', "…", fragment)


def capture_all() -> Iterator[tuple[str, str]]:
    """Every screen of the book, drawn on one port or on the port that it needs."""
    for module in see_modules():
        yield from day_screens(shown_on(module), [module])
    for backend in installed_backends():
        yield from port_screens(backend)
    yield from batch_screens(installed_backends()[0])
    yield from command_screens()
    yield from benchmark_screens()
    yield from timeline_screens()
    yield from widget_screens()


def check_all() -> Iterator[str]:
    """What differs between the book's screens and what the commands print now, on every port of this machine."""
    for backend in installed_backends():
        for difference in differences(
            (*day_screens(backend), *port_screens(backend), *batch_screens(backend))
        ):
            yield f"[{backend}] {difference}"
    yield from differences((*command_screens(), *benchmark_screens(), *timeline_screens(), *widget_screens()))
