"""What `bench-serve` shares with vLLM's: types of options, and the figures of one run under the names of its files."""

import re
from argparse import ArgumentTypeError
from collections.abc import Mapping
from typing import Any

from .report import METRICS


def pair(text: str) -> tuple[str, str]:
    """A header as NAME=VALUE. Raises ArgumentTypeError without a name."""
    name, sign, value = text.partition("=")
    if not (name and sign):
        raise ArgumentTypeError(f"{text!r}: give NAME=VALUE")
    return name, value


def share(text: str) -> float:
    """A number from 0 to below 1. Raises ArgumentTypeError for others."""
    found = number(text)
    if not 0 <= found < 1:
        raise ArgumentTypeError(f"{text!r}: give a number from 0 to below 1")
    return found


def metric_names(text: str) -> tuple[str, ...]:
    """Names of latencies between commas. Raises ArgumentTypeError for another name."""
    names = tuple(text.split(","))
    if not set(names) <= METRICS.keys():
        raise ArgumentTypeError(f"{text!r}: choose from {','.join(METRICS)}")
    return names


def percentiles(text: str) -> tuple[float, ...]:
    """Numbers from 0 to 100 between commas. Raises ArgumentTypeError for others."""
    found = tuple(map(number, text.split(",")))
    if not all(0 <= each <= 100 for each in found):
        raise ArgumentTypeError(f"{text!r}: give numbers from 0 to 100 between commas")
    return found


def number(text: str) -> float:
    """A number. Raises ArgumentTypeError for other texts."""
    try:
        return float(text)
    except ValueError:
        raise ArgumentTypeError(f"{text!r}: give a number") from None


SAME = """
    duration completed failed total_input_tokens total_output_tokens request_throughput request_goodput
    output_throughput
"""
ASKED = ("num_prompts", "burstiness", "max_concurrency")


def check_one_run(plan: Any) -> None:
    """Raise ValueError if a plan has more than one run."""
    if plan.compare or plan.rounds > 1 or len(plan.request_rate) > 1:
        raise ValueError(
            "--save-result keeps one run, as vLLM does: give one rate and no --compare or --rounds, or --json FILE"
        )


def flat(result: Mapping[str, Any], api: str) -> dict[str, Any]:
    """The only run of a result.

    Args:
        result: of `measure`.
        api: vLLM's name of the client.
    """
    [[run]] = result["runs"].values()
    plan, found = result["plan"], {"date": result["provenance"]["date"], "backend": api}
    found |= {"model_id": plan["model"], "tokenizer_id": plan["tokenizer"], "request_rate": run["rate"]}
    found |= {name: plan[name] for name in ASKED} | {name: run.get(name) for name in SAME.split()}
    tokens = run["total_input_tokens"] + run["total_output_tokens"]
    found["total_token_throughput"] = tokens / run["duration"]
    for theirs, ours in METRICS.items():
        found[f"median_{theirs}_ms"] = run[f"{ours}_p50_ms"]
        for key, value in run.items():
            if name := re.fullmatch(rf"{ours}_(mean|std|p[\d.]+)_ms", key):
                found[f"{name[1]}_{theirs}_ms"] = value
    return found


def file_name(found: Mapping[str, Any]) -> str:
    """The name of the file, unless another is given."""
    words = f"{found['backend']}-{found['request_rate']:g}qps-{found['model_id'] or 'model'}-{found['date']}"
    return re.sub(r"[^\w.-]+", "-", words) + ".json"
