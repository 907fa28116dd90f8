"""All screens of the book, captured from the commands that it shows; `--check` reports those that have changed.

Both ports must print the same, but for what `measured` patterns match: seconds and the like, which differ in every run.
The book shows what was measured when a screen was captured, and comparing leaves it out; to measure again, delete the
file and capture.
"""

import json
from collections.abc import Iterator
from itertools import chain
from typing import Any

from benchmarks import reports
from benchmarks.latency_report import has_roofline
from tiny_llm_course.trace.provenance import RESULTS, is_sealed
from tiny_llm_engine.machine.installation import installed_backends
from tiny_llm_lab.studies import chart

from . import (
    batch_screen,
    levels_player,
    policy_widget,
    result_tables,
    roofline_screen,
    roofline_widget,
    step_player,
    timeline_screen,
    tradeoff_screen,
    widget,
)
from .command_screens import command_screens
from .console import fragment, recording_console
from .day_screens import day_screens, port_screens, see_modules, shown_on
from .screen_files import differences

SHIPPED = "tiny-qwen3"


def batch_screens(backend: str) -> Iterator[tuple[str, str]]:
    """`(name, fragment)` of a running batch."""
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
    """`(name, fragment)` of the pictures of Day 2.7's widgets, for readers without JavaScript."""
    yield "week2-07-widget", widget.picture() + "\n"
    yield "week2-07-late-widget", widget.late_picture() + "\n"


def drawn_screens() -> Iterator[tuple[str, str]]:
    """`(name, fragment)` of what needs no array: timelines, and pictures of widgets with their tables."""
    yield from chain(timeline_screens(), widget_screens())
    for name, page in (
        ("week3-05-policies", policy_widget),
        ("roofline-step", roofline_widget),
        ("week4-05-levels", levels_player),
    ):
        yield name, page.picture() + "\n"
        yield f"{name}-table", page.data() + "\n"
    for name in step_player.STORIES:
        yield f"{name}-steps", step_player.picture(name) + "\n"
        yield f"{name}-steps-table", step_player.data(name) + "\n"


def sealed_results() -> Iterator[tuple[str, dict[str, Any]]]:
    """`(name, result)` of every file of results.

    Raises:
        RuntimeError: a file was changed after it was sealed.
    """
    for file in sorted(RESULTS.glob("*.json")):
        result = json.loads(file.read_text(encoding="utf-8"))
        if not is_sealed(result):
            raise RuntimeError(f"{file.name} was changed after it was sealed: measure again")
        yield file.stem, result


def benchmark_screens() -> Iterator[tuple[str, str]]:
    """`(name, fragment)` of every saved benchmark, from its sealed file: nothing is measured again.

    A roofline, the chunk sizes of the shipped model and a study with a chart have a drawing too.
    """
    for name, result in sealed_results():
        console = recording_console(reports.command_of(result))
        reports.show(console, result)
        yield f"benchmark-{name}", fragment(console)
        if has_roofline(result):
            yield name, roofline_screen.drawing(result)
        if result["kind"] == "chunked-prefill" and result["plan"]["model"] == SHIPPED:
            yield name.replace("chunked-prefill", "tradeoff"), tradeoff_screen.drawing(result)
        if result.get("chart"):
            yield name, chart.drawing(result)


def capture_all() -> Iterator[tuple[str, str]]:
    """Every screen of the book, drawn on one port or on the port that it needs."""
    for module in see_modules():
        yield from day_screens(shown_on(module), [module])
    for backend in installed_backends():
        yield from port_screens(backend)
    yield from batch_screens(installed_backends()[0])
    yield from command_screens()
    yield from result_tables.on_pages(benchmark_screens())
    yield from drawn_screens()


def check_all() -> Iterator[str]:
    """Differences between the book's screens and what the commands print now, on every port here."""
    for backend in installed_backends():
        for difference in differences(
            (*day_screens(backend), *port_screens(backend), *batch_screens(backend))
        ):
            yield f"[{backend}] {difference}"
    results = list(benchmark_screens())
    if result_tables.FILE.read_text(encoding="utf-8") != result_tables.tables(results, sealed_results()):
        yield f"{result_tables.FILE.name} is not what the results say"
    yield from differences(chain(command_screens(), result_tables.on_pages(results), drawn_screens()))
