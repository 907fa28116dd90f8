"""Serves a trace in the simulator, by one of the schedulers that the paper compares."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from tiny_llm_course.trace.pipeline.simulated_pipeline import SimulatedPipeline
from tiny_llm_course.trace.simulation.simulator import Simulation
from tiny_llm_course.trace.text import counted
from tiny_llm_engine.solutions.solution_types import ServingPackage

from ..latency_recorder import Latencies, LatencyRecorder
from ..traffic import TRACES, traffic
from .hardware import BLOCK, HARDWARE, Hardware
from .pipelined_serving import groups_of, serve_all

SEQS, ORCA_SEQS = 128, 16  # as in the artefact's configurations
# Figures of a run, by their headings.
FIGURES: dict[str, Callable[[Latencies], float | None]] = {
    "P50 TTFT": lambda run: run.ttft(50),
    "P90 TTFT": lambda run: run.ttft(90),
    "P99 TTFT": lambda run: run.ttft(99),
    "P50 TBT": lambda run: run.tbt(50),
    "P99 TBT": lambda run: run.tbt(99),
    "longest gap": lambda run: run.longest_gap,
    "P50 delay": lambda run: run.delay(50),
}
LATENCIES = ("P50 TTFT", "P99 TTFT", "P99 TBT", "longest gap")  # what most studies show


@dataclass(frozen=True)
class StudyPlan:
    """Options that all studies share."""

    names: ServingPackage  # the module `serving` of a solution
    hardware: str = "yi-34b"  # one of `HARDWARE`
    requests: int = 128  # requests per run
    seeds: tuple[int, ...] = (0, 1, 2)  # seeds of the runs; a figure is the median over them
    # of a block of 128 tokens: computed, and copied from int8, memory and a folder, by `bench-kv --returning`
    block_ms: tuple[float, ...] = (322.0, 3.7, 1.4, 9.9)


def runs_of(plan: StudyPlan) -> str:
    """A description of the runs, for a title."""
    runs = f"{counted(plan.requests, 'request')}, {counted(len(plan.seeds), 'seed')}"
    return f"{HARDWARE[plan.hardware].says}; {runs}"


def of_yi(plan: StudyPlan, figure: float) -> float | None:
    """A figure that the paper has for Yi-34B; None for another model."""
    return figure if plan.hardware.startswith("yi-34b") else None


def options_of(scheduler: str, trace: str, budget: int = 512, orca_seqs: int = ORCA_SEQS) -> dict[str, Any]:
    """The options that make the hybrid scheduler one of the paper's.

    Args:
        scheduler: "hybrid-batching-only", "chunked-prefills-only", "Sarathi-Serve", "vLLM" or "Orca".
        budget: tokens of a step, for those that cut prompts into chunks.
        orca_seqs: requests that Orca runs at a time.
    """
    most = TRACES[trace].most
    found: Mapping[str, dict[str, Any]] = {
        # Whole prompts beside decodes: a chunk may be as long as the longest prompt.
        "hybrid-batching-only": {"max_num_batched_tokens": most},
        "chunked-prefills-only": {"max_num_batched_tokens": budget, "mixed_steps": False},
        "Sarathi-Serve": {"max_num_batched_tokens": budget},
        # Whole prompts first, in steps of their own.
        "vLLM": {"max_num_batched_tokens": most, "enable_chunked_prefill": False},
        "Orca": {"max_num_batched_tokens": orca_seqs * most, "max_num_seqs": orca_seqs},
    }
    return {"max_num_seqs": SEQS, **found[scheduler]}


def simulation_on(
    hardware: Hardware, names: ServingPackage, recorder: LatencyRecorder, max_model_len: int, **options: Any
) -> Simulation:
    """A simulation with the costs and the KV blocks of this hardware."""
    memory = {"num_blocks": hardware.num_blocks, "block_size": BLOCK, "max_model_len": max_model_len}
    return Simulation(names, hardware.cost, recorder=recorder, **memory, **options)


def serve_trace(
    plan: StudyPlan, trace: str, rate: float, seed: int, variation: float = 1.0, **options: Any
) -> Simulation:
    """Run one trace; the recorder is a `LatencyRecorder`."""
    hardware = HARDWARE[plan.hardware]
    simulation = simulation_on(hardware, plan.names, LatencyRecorder(), TRACES[trace].most, **options)
    simulation.send_all(traffic(trace, rate, plan.requests, seed, variation))
    return simulation.run()


def serve_in_stages(
    plan: StudyPlan, trace: str, rate: float, seed: int, variation: float = 1.0, **options: Any
) -> Simulation:
    """Run one trace in a pipeline, and return the group of its first stage, whose recorder has heard all of them."""
    hardware, recorder = HARDWARE[plan.hardware], LatencyRecorder()
    pipeline = SimulatedPipeline(hardware.cost, hardware.stages)
    specs = traffic(trace, rate, plan.requests, seed, variation)
    groups = groups_of(
        plan.names, pipeline, specs, TRACES[trace].most, hardware.num_blocks, recorder=recorder, **options
    )
    serve_all(groups)
    return groups[0]


def medians(found: Sequence[Latencies], *names: str) -> list[float]:
    """The median of each of these `FIGURES` over the runs, in seconds; runs without it do not count."""
    figures = (FIGURES[name] for name in names)
    return [median(seconds for each in found if (seconds := figure(each)) is not None) for figure in figures]


def latencies_of_seeds(plan: StudyPlan, trace: str, rate: float, **options: Any) -> list[Latencies]:
    """Latencies of one run per seed."""
    serve = serve_trace if HARDWARE[plan.hardware].stages == 1 else serve_in_stages
    return [serve(plan, trace, rate, seed, **options).recorder.latencies() for seed in plan.seeds]
