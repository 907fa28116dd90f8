"""How each kind of sealed result is shown, by its own command and by the book."""

import argparse
from collections.abc import Callable, Mapping
from typing import Any

from rich.console import Console

from tiny_llm_kit.trace import provenance
from tiny_llm_lab.studies import study

from . import chunked_prefill_report, report, roofline_report, scheduler_report, throughput_report
from .serving import report as serving_report

SHOW: dict[str, Callable[[Console, Mapping[str, Any]], None]] = {
    "decode": report.show,
    "prefill": report.show,
    "chunked-prefill": chunked_prefill_report.show,
    "scheduler": scheduler_report.show,
    "roofline": roofline_report.show,
    "throughput": throughput_report.show,
    "lab": study.show,
    "serve": serving_report.show,
}


def command_of(result: Mapping[str, Any]) -> str:
    """The command that makes such a result, with its options."""
    name = "lab" if result["kind"] == "lab" else f"bench-{result['kind']}"
    return f"pdm run {name} {result['options']}".strip()


def show(console: Console, result: Mapping[str, Any]) -> None:
    """The result as its own command prints it."""
    SHOW[result["kind"]](console, result)


def show_and_keep(
    console: Console, result: dict[str, Any], options: argparse.Namespace, argv: list[str] | None
) -> None:
    """The tables of a result; with --save also the sealed file, with the options as a reader would type them."""
    show(console, result)
    if options.save:
        provenance.keep(console, result, options.save, argv)
