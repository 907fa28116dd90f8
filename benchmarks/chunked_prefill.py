"""`pdm run bench-throughput --preset chunked-prefill`: what chunks of each size gain and cost.

The requests are those of Day 2.7, served with chunks of each size, with whole prompts, and with pausing. With
`--hybrid` Week 3's engine serves them beside Week 2's.
"""

import argparse
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from tiny_llm_course.address import Day
from tiny_llm_course.capabilities import ends_at_a_blank, load, network_options
from tiny_llm_course.trace.chunk_sweep import ADAPTIVE, NAMES, Progress, figures_of, shown, sweep
from tiny_llm_course.trace.provenance import provenance
from tiny_llm_course.trace.serve import EndlessTokenizer, Serving, serve
from tiny_llm_course.trace.trace import WHOLE
from tiny_llm_course.trace.workload import LONG, SHORT, RequestSpec, Workload, decode_heavy, mixed
from tiny_llm_engine.backends.samples import in_turns
from tiny_llm_engine.llm_engine import LLMEngine
from tiny_llm_engine.loading import Loading
from tiny_llm_engine.models.weights.random_weights import SHAPES, RandomCheckpoint, shape
from tiny_llm_engine.solutions.port import Port
from tiny_llm_engine.solutions.solution import resolve_serving
from tiny_llm_extensions.arguments import DTYPES, model_argument, whole_number
from tiny_llm_extensions.engine_options import EngineOptions
from tiny_llm_extensions.given import given_of
from tiny_llm_extensions.loading import load_network, random_network
from tiny_llm_extensions.open_engine import open_engine

from .command import RunProgress, carry_out, port_of
from .engine_load import trace_of_run
from .options import check_context, count, counts, option, plain, plan_of
from .report import model_name

EngineOf = Callable[[int, Workload], LLMEngine]  # Week 3's, with this budget and places for this workload
# Shown name -> (whether the prompt is chunked, options of `Turns`).
POLICIES = {
    "unchunked": (False, {}),
    "chunked, in order": (True, {}),
    "chunked, with pausing": (True, {"pause_prefill": True}),
}


def chunk_argument(text: str) -> int | None:
    """The tokens of a chunk: "none" is the whole prompt, "adaptive" what the chunker chooses."""
    named = {name: step for step, name in NAMES.items()}
    return named[text] if text in named else whole_number(1, WHOLE - 1)(text)


def tokens(default: int, help: str) -> Any:
    """An option for the length of prompts that need several chunks."""
    return option(default, help, type=whole_number(9), metavar="N")


@dataclass(frozen=True)
class SweepPlan:
    """Options of the preset."""

    model: str = option(
        "tiny-qwen3", "a shipped name, a folder, a GGUF file or a hub id", type=model_argument
    )
    config: str | None = option(
        None, "instead of --model: a shape with random weights", choices=sorted(SHAPES)
    )
    layers: int | None = count(None, "with --config: fewer layers than the shape has")
    steps: tuple[int | None, ...] = option(
        (32, 128, 512, ADAPTIVE, None),
        "tokens of a chunk; adaptive: AdaptiveChunker chooses; none: a prompt is computed whole",
        type=chunk_argument,
        nargs="+",
        metavar="N",
    )
    policy_step: int = count(128, "tokens of a chunk of the policies")
    hybrid: tuple[int, ...] = counts((), "also Week 3's engine: tokens of a step, and of a chunk of Week 2's")
    mixed_tokens: int = tokens(1024, "tokens of the long prompts that are there at the start")
    long_tokens: int = tokens(2048, "tokens of the long prompt that comes alone")
    rounds: int = count(5, "runs of each, taken in turns")
    threads: int = count(os.cpu_count() or 1)
    dtype: str = option("auto", choices=DTYPES)

    @property
    def number_of_runs(self) -> int:
        """Runs of both sweeps, both cases of the policies and three of the engines; of each one more than rounds."""
        engines = 3 * (1 + 2 * len(self.hybrid)) if self.hybrid else 0
        return (2 * (len(self.steps) + len(POLICIES)) + engines) * (self.rounds + 1)


def run(options: argparse.Namespace, argv: list[str] | None) -> None:
    """Measure the preset, show and keep the result."""
    steps = tuple(dict.fromkeys([*options.steps, None]))  # with none, which all are compared with

    def measured(report: RunProgress) -> dict[str, Any]:
        port, plan = port_of(options), plan_of(SweepPlan, options, steps=steps)
        port.backend_module.set_threads(plan.threads)
        serving = Serving(resolve_serving(options.solution), runner_of(plan, port, options.solution))
        engine_of = engine_maker(plan, port, options.solution) if plan.hybrid else None
        named = replace(plan, model=model_name(vars(plan)), dtype=port.float_dtype)
        return measure(
            named, serving, port.name, port.device, lambda what: report(what, plan.number_of_runs), engine_of
        )

    with ends_at_a_blank(needs=Day(3, 3) if options.hybrid else Day(2, 7)):
        carry_out("throughput", options, argv, measured)


def runner_of(plan: SweepPlan, port: Port, solution: str) -> Any:
    """A runner of a model's files, or of a shape with random weights."""
    if plan.config:
        checkpoint = RandomCheckpoint(
            shape(plan.config, plan.layers), port.backend_module, port.float_dtype, port.device
        )
        model = port.Qwen3ModelWeek2(checkpoint, attention="device")
        given_of(port).use_products(model, "plain")
        return port.runner(model, chunk_mask=port.chunked_attention_mask)
    runner, _ = load(
        plan.model, solution=solution, backend=port.name, device=port.device, dtype=port.float_dtype
    )
    return runner


def engine_maker(plan: SweepPlan, port: Port, solution: str) -> EngineOf:
    """Week 3's engine on the same model, or on random weights of the same shape."""
    if plan.config:
        network, _ = random_network(port, shape(plan.config, plan.layers))
    else:
        network, _ = load_network(port, plan.model, "week3", Loading(**network_options(solution, port.name)))

    def engine_of(budget: int, workload: Workload) -> LLMEngine:
        options = EngineOptions(
            max_num_batched_tokens=budget,
            max_num_seqs=workload.batch_size,
            max_model_len=workload.max_seq_len,
            enforce_eager=True,
        )
        return open_engine(port, network, EndlessTokenizer(), options)

    return engine_of


def measure(
    plan: SweepPlan,
    serving: Serving,
    backend: str,
    device: str,
    progress: Progress,
    engine_of: EngineOf | None,
) -> dict[str, Any]:
    """Measure every workload with every chunk size, then every policy, then both engines.

    Raises:
        ValueError: a prompt is longer than what the model reads.
    """
    workloads = mixed(plan.mixed_tokens), decode_heavy(plan.long_tokens)
    check_context(max(each.max_seq_len for each in workloads) - 1, serving.model.max_model_len)
    before = provenance(device)
    sweeps = [sweep(serving, workload, plan.steps, plan.rounds, progress) for workload in workloads]
    policies = [_policies(plan, serving, queued, progress) for queued in (True, False)]
    compared = (*workloads, behind_a_long_one(plan.long_tokens, None, queued=True))
    return {
        "kind": "chunked-prefill",
        "backend": backend,
        "plan": plain(plan) | {"steps": [shown(step) for step in plan.steps]},
        "provenance": before,
        "sweeps": sweeps,
        "policies": policies,
        "engines": [_engines(plan, serving, workload, engine_of, progress) for workload in compared]
        if plan.hybrid and engine_of
        else [],
    }


def behind_a_long_one(tokens: int, chunk: int | None, queued: bool) -> Workload:
    """A workload of three short prompts after a long one.

    Args:
        tokens: the length of the long prompt.
        chunk: tokens of a chunk; None computes it whole, in call 0.
        queued: whether all are there at the start; else they arrive as the long one's second chunk begins.
    """
    second = 1 if chunk is not None and chunk < tokens else 0
    arrives = None if queued else second
    short = tuple(RequestSpec(SHORT, size, 16, arrives) for size in (3, 4, 5))
    when = "all at the start" if queued else "from its second chunk on"
    about = f"prompts of 3, 4 and 5 tokens after one of {tokens:,}, {when}"
    return Workload("queued" if queued else "arriving", about, (RequestSpec(LONG, tokens, 16), *short))


def _policies(plan: SweepPlan, serving: Serving, queued: bool, progress: Progress) -> dict[str, Any]:
    """Short prompts after a long one, under each policy."""

    def policy(is_chunked: bool, turns: Mapping[str, Any]) -> Callable[[], dict]:
        step = plan.policy_step if is_chunked else None
        return _week2(serving, behind_a_long_one(plan.long_tokens, step, queued), step, **turns)

    cast = {name: policy(*options) for name, options in POLICIES.items()}
    return _in_turns(plan, behind_a_long_one(plan.long_tokens, plan.policy_step, queued), cast, progress)


def _engines(
    plan: SweepPlan, serving: Serving, workload: Workload, engine_of: EngineOf, progress: Progress
) -> dict[str, Any]:
    """Week 2's engine with chunks, and Week 3's with as many tokens per step, decodes included."""

    def week3(budget: int) -> Callable[[], dict]:
        engine = engine_of(budget, workload)
        return lambda: figures_of(trace_of_run(engine, workload), workload)

    cast = {"Week 2, whole prompts": _week2(serving, workload, None)}
    cast |= {f"Week 2, chunks of {step}": _week2(serving, workload, step) for step in plan.hybrid}
    cast |= {f"Week 3, budget of {budget}": week3(budget) for budget in plan.hybrid}
    return _in_turns(plan, workload, cast, progress)


def _week2(serving: Serving, workload: Workload, step: int | None, **turns: Any) -> Callable[[], dict]:
    """One run of Week 2's engine."""
    return lambda: figures_of(serve(serving, workload, step, **turns).trace(), workload)


def _in_turns(
    plan: SweepPlan, workload: Workload, cast: Mapping[str, Callable[[], dict]], progress: Progress
) -> dict[str, Any]:
    """The figures of each engine in every round; one warm-up run of each goes before."""

    def run(name: str, number: int) -> dict[str, Any]:
        progress(f"{workload.name}, {name}")
        return cast[name]()

    figures = in_turns({name: partial(run, name) for name in cast}, range(-1, plan.rounds))
    runs = {name: found[1:] for name, found in figures.items()}
    return {"name": workload.name, "says": workload.says, "runs": runs}
