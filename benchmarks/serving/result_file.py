"""The figures of one run in one object, with the names that files of vLLM's `bench serve` have."""

import re
from collections.abc import Mapping
from typing import Any

from .report import METRICS

SAME = (
    "duration", "completed", "failed", "total_input_tokens", "total_output_tokens", "request_throughput",
    "request_goodput", "output_throughput",
)  # fmt: skip
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
    found |= {name: plan[name] for name in ASKED} | {name: run.get(name) for name in SAME}
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
