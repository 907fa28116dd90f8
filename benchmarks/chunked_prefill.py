"""The benchmark of Day 2.7: the same requests with chunks of every size, with whole prompts, and by Week 3's engine."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tiny_llm_kit.engine.arguments import DTYPES, model_argument, whole_number
from tiny_llm_kit.engine.llm_engine import LLMEngine
from tiny_llm_kit.trace.chunk_sweep import ADAPTIVE, NAMES, Progress, figures_of, shown, sweep
from tiny_llm_kit.trace.provenance import provenance
from tiny_llm_kit.trace.recorder import Recorder
from tiny_llm_kit.trace.serve import Serving, serve
from tiny_llm_kit.trace.trace import WHOLE, Trace
from tiny_llm_kit.trace.workload import Workload, behind_a_long_one, decode_heavy, mixed

from .engine_load import EngineLoad
from .options import COUNT, COUNTS, check_context, option

EngineOf = Callable[
    [int, Workload], LLMEngine
]  # Week 3's engine with this budget, and places for this workload
# Shown name -> (whether the prompt is chunked, options of `Turns`).
POLICIES = {
    "unchunked": (False, {}),
    "chunked, in order": (True, {}),
    "chunked, with pausing": (True, {"pause_prefill": True}),
}


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
    hybrid: tuple[int, ...] = option(
        (), "also Week 3's engine: tokens of a step, and of a chunk of Week 2's", **COUNTS, metavar="N"
    )
    mixed_tokens: int = option(1024, **LENGTH)
    long_tokens: int = option(2048, **LENGTH)
    rounds: int = option(5, "runs of each, taken in turns", **COUNT)
    threads: int = option(os.cpu_count() or 1, **COUNT)
    dtype: str = option("auto", choices=DTYPES)


def measure(
    plan: SweepPlan,
    serving: Serving,
    backend: str,
    device: str,
    progress: Progress,
    engine_of: EngineOf | None = None,
) -> dict[str, Any]:
    """Every workload with every chunk size, then every policy, then both engines.

    Args:
        engine_of: for `plan.hybrid`.

    Raises:
        ValueError: a prompt is longer than what the model reads.
    """
    workloads = mixed(plan.mixed_tokens), decode_heavy(plan.long_tokens)
    check_context(max(each.max_seq_len for each in workloads) - 1, serving.model.max_model_len)
    before = provenance(device)
    sweeps = [sweep(serving, workload, plan.steps, plan.rounds, progress) for workload in workloads]
    policies = [_policies(plan, serving, queued, progress) for queued in (True, False)]
    compared = (*workloads, behind_a_long_one(plan.long_tokens, None, queued=True)) if plan.hybrid else ()
    engines = [_engines(plan, serving, workload, engine_of, progress) for workload in compared]
    return {
        "kind": "chunked-prefill",
        "backend": backend,
        "plan": {**plan.__dict__, "steps": [shown(step) for step in plan.steps], "hybrid": list(plan.hybrid)},
        "provenance": before,
        "sweeps": sweeps,
        "policies": policies,
        "engines": engines,
    }


def _policies(plan: SweepPlan, serving: Serving, queued: bool, progress: Progress) -> dict[str, Any]:
    """Short prompts after a long one, under each policy."""

    def policy(is_chunked: bool, options: Mapping[str, Any]) -> tuple[Workload, Callable[[], dict]]:
        step = plan.policy_step if is_chunked else None
        workload = behind_a_long_one(plan.long_tokens, step, queued)
        return workload, lambda: figures_of(serve(serving, workload, step, **options).trace(), workload)

    cast = {name: policy(*options) for name, options in POLICIES.items()}
    workload = cast[list(cast)[-1]][0]
    return _in_turns(plan.rounds, workload, {name: run for name, (_, run) in cast.items()}, progress)


def _engines(
    plan: SweepPlan, serving: Serving, workload: Workload, engine_of: EngineOf, progress: Progress
) -> dict[str, Any]:
    """Week 2's engine with chunks, and Week 3's with as many tokens per step, decodes included."""

    def week2(step: int | None) -> Callable[[], dict]:
        return lambda: figures_of(serve(serving, workload, step).trace(), workload)

    def week3(budget: int) -> Callable[[], dict]:
        engine = engine_of(budget, workload)
        return lambda: figures_of(engine_trace(engine, workload), workload)

    cast = {"Week 2, whole prompts": week2(None)}
    cast |= {f"Week 2, chunks of {step}": week2(step) for step in plan.hybrid}
    cast |= {f"Week 3, budget of {budget}": week3(budget) for budget in plan.hybrid}
    return _in_turns(plan.rounds, workload, cast, progress)


def engine_trace(engine: LLMEngine, workload: Workload) -> Trace:
    """One run of Week 3's engine."""
    engine.reset_prefix_cache()
    recorder = Recorder(workload.promise)
    engine.listeners[:] = [recorder]
    EngineLoad(engine, workload).run()
    return recorder.trace(workload.name, engine.max_num_batched_tokens)


def _in_turns(
    rounds: int, workload: Workload, cast: Mapping[str, Callable[[], dict]], progress: Progress
) -> dict[str, Any]:
    """The figures of each candidate in every round; one warm-up run of each goes before."""
    figures: dict[str, list[dict]] = {name: [] for name in cast}
    names = list(cast)
    for number in range(-1, rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            progress(f"{workload.name}, {name}")
            figures[name].append(cast[name]())
    runs = {name: counted[1:] for name, counted in figures.items()}
    return {"name": workload.name, "says": workload.says, "runs": runs}


def number_of_runs(plan: SweepPlan) -> int:
    """Of both sweeps, both cases of the policies and three of the engines; each has one run more than rounds."""
    engines = 3 * (1 + 2 * len(plan.hybrid)) if plan.hybrid else 0
    return (2 * (len(plan.steps) + len(POLICIES)) + engines) * (plan.rounds + 1)
