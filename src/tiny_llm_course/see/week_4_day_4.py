"""The screen of Day 4.4: host and device over time, step by step and ahead, on a device with a clock of its own.

The learner's schedulers plan; that device fills in no tokens, because each of its draws is token 0. PyTorch's port also
shows a real model, whose tokens the learner's `fill_placeholders` fills in.
"""

from collections.abc import Sequence
from itertools import pairwise
from statistics import median

from rich.console import Console
from rich.table import Table

from tiny_llm_engine.solutions.port import Port
from tiny_llm_engine.solutions.solution_types import ServingPackage

from ..trace.pipeline.gantt import show_rows
from ..trace.simulation.virtual_device import VirtualDevice, WorkSpan, served_on_device
from ..trace.tables import figures_table
from .shared import MODEL
from .timed_steps import REQUESTS, timed_runs

HOST, STEP = 2, 6  # milliseconds of a step
ANSWERS = (100, 60, 100, 30)  # tokens of each answer; all prompts fit into the first step
TIMES = (0.6, 1.5, 2, 3, 6, 9, 12)  # milliseconds of the host, from a tenth of a step to two
COLUMNS = 62  # of the chart
SIGNS = "█▓"  # of a step and of the next one
FIRST, LAST = 20, 26  # steps of the real model that its chart shows
MEASURED = (r"(?:Python|thread)  .*", r" +0 +\d+ ms", r"\d+\.\d\d {2,}.*")
WAYS = {"one after the other": False, "asynchronous": True}  # whether steps are planned ahead


def show(b: Port, console: Console) -> None:
    """Draw host and device under both schedulers, and a table of what the device waits."""
    console.print(
        f"{len(ANSWERS)} requests. The host needs {HOST} ms for a step, the device {STEP}. {SIGNS}: a step and the\n"
        "next one. Dots: the device waits."
    )
    runs = {way: served(b.serving, way, HOST) for way in WAYS}
    for way, run in runs.items():
        console.print(f"\n{way}\n", style="bold")
        draw(console, run.host, run.device, 0, COLUMNS / 1000, "host", "device")
    console.print("\nShare of the time in which the device waits, and what the second way gains\n")
    console.print(table_of(b.serving))


def served(s: ServingPackage, way: str, host: float) -> VirtualDevice:
    """The run of a way, with a host that needs this many milliseconds for a step."""
    return served_on_device(s, WAYS[way], host / 1000, STEP / 1000, ANSWERS)


def draw(
    console: Console,
    host: Sequence[WorkSpan],
    device: Sequence[WorkSpan],
    start: float,
    seconds: float,
    *names: str,
) -> None:
    """A timeline of two rows, the host above the device, and its axis in seconds."""
    times = [start + (column + 0.5) / COLUMNS * seconds for column in range(COLUMNS)]
    rows = {
        name: [cell(spans, time, idle) for time in times]
        for name, spans, idle in zip(names, (host, device), " ·", strict=True)
    }
    show_rows(console, rows, seconds, COLUMNS)


def cell(spans: Sequence[WorkSpan], time: float, idle: str) -> tuple[str, str]:
    """The sign and the style of a moment."""
    for number, span in enumerate(spans):
        if span.start <= time < span.end:
            return SIGNS[number % len(SIGNS)], "yellow" if idle == " " else "cyan"
    return idle, "bold red"


def table_of(s: ServingPackage) -> Table:
    """For each time of the host the idle share of both ways, and what the second gains."""
    table = figures_table("host, ms", *(f"{host:g}" for host in TIMES))
    runs = {way: [served(s, way, host) for host in TIMES] for way in WAYS}
    for way, row in runs.items():
        table.add_row(way, *(f"{abs(run.idle_share):.0%}" for run in row))
    plain, ahead = runs.values()
    gains = (before.clock.now / after.clock.now for before, after in zip(plain, ahead, strict=True))
    table.add_row("tokens per second", *(f"{gain:.2f} ×" for gain in gains))
    return table


def show_torch(b: Port, console: Console) -> None:
    """Draw host and device of the shipped model, where a thread of PyTorch is the device; then median times."""
    console.print(
        f"{MODEL}, {REQUESTS} requests, steps {FIRST} to {LAST}. One thread of PyTorch is the device."
    )
    table = figures_table("median ms", "Python", "thread", "thread waits", "step")
    for way, (host, device) in zip(WAYS, timed_runs(b, [*WAYS.values()]), strict=True):
        console.print(f"\n{way}\n", style="bold")
        start = device[FIRST].start
        draw(console, host, device, start, device[LAST].end - start, "Python", "thread")
        gaps = [after.start - before.end for before, after in pairwise(device)]
        steps = [after.start - before.start for before, after in pairwise(device)]
        busy = ([span.seconds for span in spans] for spans in (host, device))
        table.add_row(way, *(f"{1000 * median(part):.2f}" for part in (*busy, gaps, steps)))
    console.print()
    console.print(table)
