"""How each kind of sealed result is shown, by its command `bench-KIND` and by the book."""

from collections.abc import Callable, Mapping
from typing import Any

from rich.console import Console

from . import chunked_prefill_report, report, roofline_report, scheduler_report

SHOW: dict[str, Callable[[Console, Mapping[str, Any]], None]] = {
    "decode": report.show,
    "prefill": report.show,
    "chunked-prefill": chunked_prefill_report.show,
    "scheduler": scheduler_report.show,
    "roofline": roofline_report.show,
}


def show(console: Console, result: Mapping[str, Any]) -> None:
    """The result as its own command prints it."""
    SHOW[result["kind"]](console, result)
