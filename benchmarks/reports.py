"""How each kind of result is shown, by its own command and by the book; and the speeds that can be compared."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rich.console import Console

from tiny_llm_lab.studies import study

from . import (
    chunked_prefill_report,
    hpu_day_report,
    kv_report,
    latency_report,
    quality_report,
    scheduler_report,
    stalls_report,
    throughput_report,
)
from .report import Report, Speeds
from .serving import report as serving_report

Result = Mapping[str, Any]
REPORTS: dict[str, Callable[[Result], Report]] = {
    **dict.fromkeys(("latency", "decode", "prefill", "roofline"), latency_report.report),
    "chunked-prefill": chunked_prefill_report.report,
    "throughput": throughput_report.report,
    "real-model": throughput_report.report_of_real_model,
    "serve": serving_report.report,
    "quality": quality_report.report,
    "kv": kv_report.report,
    "kv-returning": kv_report.report_of_returning,
    "scheduler": scheduler_report.report,
    "hpu-day": hpu_day_report.report,
    "stalls": stalls_report.report,
}
SPEEDS: dict[str, Callable[[Result], Speeds]] = {
    **dict.fromkeys(("latency", "decode", "prefill"), latency_report.speeds),
    **dict.fromkeys(("throughput", "real-model"), throughput_report.speeds),
}


def command_of(result: Result) -> str:
    """The command that made a result, with its options. Older results do not say: commands had the kind's name."""
    earlier = "lab" if result["kind"] == "lab" else f"bench-{result['kind']}"
    return f"pdm run {result.get('command', earlier)} {result['options']}".strip()


def speeds_of_cases(result: Result) -> Iterator[tuple[str, dict[str, float]]]:
    """Tokens per second of each engine, by cases; none where a load sets the speed, and where no speed is measured."""
    if result["kind"] in SPEEDS:
        for case, engines in SPEEDS[result["kind"]](result).items():
            yield case, {name: each.tokens_per_second for name, each in engines.items()}


def show(console: Console, result: Result) -> None:
    """Print the result as its own command does."""
    if result["kind"] == "lab":
        study.show(console, result)
        return
    for number, part in enumerate(REPORTS[result["kind"]](result)):
        console.print(*[""] * (number > 0), part, sep="\n")
