"""The benchmark of Day 2.7: the same requests with chunks of every size and with whole prompts."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ...runtime.arguments import DTYPES, model_argument, whole_number
from ..serve import Serving, serve
from ..trace import WHOLE, Trace, percentile
from ..workload import LONG, SHORT, Workload, behind_a_long_one, decode_heavy, mixed
from .options import COUNT, check_context, option
from .provenance import provenance

Progress = Callable[[str], object]  # told what runs now
# Shown name -> (whether the prompt is chunked, options of `Turns`).
POLICIES = {
    "unchunked": (False, {}),
    "chunked, in order": (True, {}),
    "chunked, with pausing": (True, {"pause_prefill": True}),
}
# Stands for the sizes that `AdaptiveChunker` chooses: `sweep_chunk_sizes` takes numbers alone.
ADAPTIVE = WHOLE + 1
NAMES = {None: "none", ADAPTIVE: "adaptive"}


def chunk_argument(text: str) -> int | None:
    """ "none" is the whole prompt, "adaptive" what the chunker chooses."""
    named = {name: step for step, name in NAMES.items()}
    return named[text] if text in named else whole_number(1, WHOLE - 1)(text)


LENGTH = {"type": whole_number(9), "metavar": "N"}


@dataclass(frozen=True)
class SweepPlan:
    """What to measure."""

    model: str = option("tiny-qwen3", "a shipped name, a folder or a hub id", type=model_argument)
    steps: tuple[int | None, ...] = option(
        (32, 128, 512, ADAPTIVE, None),
        "tokens of a chunk; adaptive: AdaptiveChunker chooses; none: a prompt is computed whole",
        type=chunk_argument,
        nargs="+",
        metavar="N",
    )
    policy_step: int = option(128, "for the policies", **COUNT, metavar="N")
    mixed_tokens: int = option(1024, **LENGTH)
    long_tokens: int = option(2048, **LENGTH)
    rounds: int = option(5, "runs of each, taken in turns", **COUNT)
    threads: int = option(os.cpu_count() or 1, **COUNT)
    dtype: str = option("auto", choices=DTYPES)


def measure(
    plan: SweepPlan, serving: Serving, backend: str, device: str, progress: Progress
) -> dict[str, Any]:
    """Every workload with every chunk size, then every policy.

    Raises:
        ValueError: a prompt is longer than what the model reads.
    """
    workloads = mixed(plan.mixed_tokens), decode_heavy(plan.long_tokens)
    check_context(max(each.max_seq_len for each in workloads) - 1, serving.model.max_model_len)
    before = provenance(device)
    sweeps = [sweep(serving, workload, plan.steps, plan.rounds, progress) for workload in workloads]
    policies = [_policies(plan, serving, queued, progress) for queued in (True, False)]
    return {
        "kind": "chunked-prefill",
        "backend": backend,
        "plan": {**plan.__dict__, "steps": [shown(step) for step in plan.steps]},
        "provenance": before,
        "sweeps": sweeps,
        "policies": policies,
    }


def sweep(
    serving: Serving, workload: Workload, steps: Sequence[int | None], rounds: int, progress: Progress
) -> dict[str, Any]:
    """One workload, by the course's own `sweep_chunk_sizes`, which takes the turns; one run of each goes before."""
    figures: dict[int | None, list[dict]] = {step: [] for step in steps}

    def run(step: int | None) -> Any:
        progress(f"{workload.name}, chunk {shown(step)}")
        metrics = serving.names.ChunkedPrefillMetrics(prefill_step=workload.promise)
        chunker = serving.adaptive_chunker() if step == ADAPTIVE else None
        served = serve(serving, workload, step, metrics=metrics, chunker=chunker)
        figures[step].append(figures_of(served.trace(), workload))
        return metrics

    for step in steps:
        run(step)
    rows = serving.names.sweep_chunk_sizes(run, steps, rounds=rounds)
    return {
        "name": workload.name,
        "says": workload.says,
        "runs": {shown(step): counted[1:] for step, counted in figures.items()},
        "rows": [{**row, "step": "adaptive" if row["step"] == ADAPTIVE else row["step"]} for row in rows],
    }


def _policies(plan: SweepPlan, serving: Serving, queued: bool, progress: Progress) -> dict[str, Any]:
    """Short prompts after a long one, under each policy, in turns, after one warm-up run of each."""
    figures: dict[str, list[dict]] = {name: [] for name in POLICIES}
    names = list(POLICIES)
    for number in range(-1, plan.rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            is_chunked, options = POLICIES[name]
            step = plan.policy_step if is_chunked else None
            workload = behind_a_long_one(plan.long_tokens, step, queued)
            progress(f"{workload.name}, {name}")
            figures[name].append(figures_of(serve(serving, workload, step, **options).trace(), workload))
    runs = {name: counted[1:] for name, counted in figures.items()}
    return {"name": workload.name, "says": workload.says, "runs": runs}


def figures_of(trace: Trace, workload: Workload) -> dict[str, Any]:
    """One run in seconds: every TTFT of the long and of the short prompts, TBT p50 and p99, the longest gap, the stalls
    against what was promised, and the time of all."""

    def ttft(kind: str) -> list[float]:
        specs = zip(workload.requests, trace.lanes, strict=True)
        return sorted(lane.ttft for spec, lane in specs if spec.kind == kind)

    return {
        "ttft_long": ttft(LONG),
        "ttft_short": ttft(SHORT),
        "tbt_p50": percentile(trace.gaps, 50),
        "tbt_p99": trace.tbt_p99,
        "longest_gap": trace.longest_gap,
        "stall_steps": trace.stall_steps,
        "total": trace.end,
    }


def shown(step: int | None) -> str:
    return NAMES.get(step, str(step))


def number_of_runs(plan: SweepPlan) -> int:
    """Of both sweeps and both cases of the policies; each has one run more than there are rounds."""
    return 2 * (len(plan.steps) + len(POLICIES)) * (plan.rounds + 1)
