"""How each kind of result is shown, by its own command and by the book; and the speeds that can be compared."""

from collections.abc import Callable, Iterator, Mapping
from itertools import groupby
from typing import Any

from rich.console import Console

from tiny_llm_lab.studies import study

from . import (
    chunked_prefill_report,
    kv_pages_report,
    latency_report,
    quality_report,
    real_model,
    returning_report,
    scheduler_report,
    throughput_report,
)
from .serving import report as serving_report

SHOW: dict[str, Callable[[Console, Mapping[str, Any]], None]] = {
    "latency": latency_report.show,
    "decode": latency_report.show,
    "prefill": latency_report.show,
    "roofline": latency_report.show,
    "chunked-prefill": chunked_prefill_report.show,
    "throughput": throughput_report.show,
    "real-model": real_model.show,
    "serve": serving_report.show,
    "quality": quality_report.show,
    "kv": kv_pages_report.show,
    "kv-returning": returning_report.show,
    "scheduler": scheduler_report.show,
    "lab": study.show,
}


def command_of(result: Mapping[str, Any]) -> str:
    """The command that made a result, with its options. Older results do not say: commands had the kind's name."""
    earlier = "lab" if result["kind"] == "lab" else f"bench-{result['kind']}"
    return f"pdm run {result.get('command', earlier)} {result['options']}".strip()


def speeds_of_cases(result: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, float]]]:
    """Tokens per second of each engine, by cases; none where a load sets the speed, and where no speed is measured."""
    if result["kind"] in ("decode", "prefill", "latency"):
        for phase in latency_report.TITLES:
            lines = latency_report.lines(result, phase)
            for (rows, context), found in groupby(lines, lambda line: (line.rows, line.context)):
                yield f"{phase} {rows} × {context:,}", {line.name: line.tokens_per_second for line in found}
    elif result["kind"] in ("throughput", "real-model"):
        case = "{num_prompts} × {input_len} + {output_len}".format(**result["plan"])
        for name, each in result.get("cases", {case: result}).items():
            yield name, {engine: real_model.speed(runs) for engine, runs in each["runs"].items()}


def show(console: Console, result: Mapping[str, Any]) -> None:
    """Print the result as its own command does."""
    SHOW[result["kind"]](console, result)
