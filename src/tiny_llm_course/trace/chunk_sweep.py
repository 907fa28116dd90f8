"""Sweep of one workload over chunk sizes, by the course's own `sweep_chunk_sizes`, and its figures."""

import statistics
from collections.abc import Callable, Mapping, Sequence

from tiny_llm_engine.models.files import Json
from tiny_llm_engine.solutions.solution_types import ServingPackage

from .serve import Serving, serve
from .trace import WHOLE, Trace, percentile
from .workload import LONG, SHORT, RequestSpec, Workload

Progress = Callable[[str], object]  # called with what runs now
# Stands for the sizes that `AdaptiveChunker` chooses: `sweep_chunk_sizes` takes numbers alone.
ADAPTIVE = WHOLE + 1
NAMES = {None: "none", ADAPTIVE: "adaptive"}

# Printed where chunks may shorten the total time: the gain is not that of chunking.
WITHOUT_A_FUSED_KERNEL = (
    "If chunks shorten the total: without a fused kernel (MLX on a CPU) attention\n"
    "computes the hidden half of a whole prompt's scores; chunks skip most of it."
)
NEAR = 0.05  # a change that is smaller is neither won nor lost


def sweep(
    serving: Serving, workload: Workload, steps: Sequence[int | None], rounds: int, progress: Progress
) -> Json:
    """Sweep one workload by the course's own `sweep_chunk_sizes`, which takes turns; one run of each goes before."""
    figures: dict[int | None, list[dict]] = {step: [] for step in steps}

    def run(step: int | None) -> "ServingPackage.ChunkedPrefillMetrics":
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


def figures_of(trace: Trace, workload: Workload) -> Json:
    """Figures of one run in seconds; the TTFT of each request; and the steps that kept an answer waiting too long."""
    return {
        "ttft_long": sorted(known("ttft", trace, workload.requests, LONG)),
        "ttft_short": sorted(known("ttft", trace, workload.requests, SHORT)),
        "tbt_p50": percentile(trace.gaps, 50),
        "tbt_p99": trace.tbt_p99,
        "longest_gap": trace.longest_gap,
        "stall_steps": trace.stall_steps,
        "total": trace.end,
    }


def known(figure: str, trace: Trace, requests: Sequence[RequestSpec], kind: str) -> list[float]:
    """A figure of each lane in seconds, of the requests of a kind that have it."""
    lanes = (lane for spec, lane in zip(requests, trace.lanes, strict=True) if spec.kind == kind)
    return [seconds for lane in lanes if (seconds := getattr(lane, figure)) is not None]


def shown(step: int | None) -> str:
    """The name of a chunk size in tables."""
    return NAMES.get(step, str(step))


def samples(runs: Sequence[Mapping], figure: str) -> list[float]:
    """One number per round, of several requests their median; none where the workload has no such request."""
    found = [run[figure] for run in runs]
    if not isinstance(found[0], list):
        return found
    return [statistics.median(times) for times in found if times]


def median(runs: Sequence[Mapping], figure: str) -> float | None:
    """The median of the rounds; None where the workload has no such request."""
    numbers = samples(runs, figure)
    return statistics.median(numbers) if numbers else None


def percent(share: float) -> str:
    """A share with its sign; what rounds to nothing has none."""
    rounded = round(100 * share)
    return f"{'−' if rounded < 0 else '+' if rounded > 0 else '±'}{abs(rounded):,} %"
