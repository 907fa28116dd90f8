"""The throughput benchmark: many requests, answered by our engine as `LLM.generate` runs it, and by peers."""

import os
import time
from argparse import BooleanOptionalAction
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from tiny_llm_kit.engine.arguments import DTYPES, model_argument, whole_number
from tiny_llm_kit.engine.llm import LLM
from tiny_llm_kit.engine.llm_engine import LLMEngine
from tiny_llm_kit.engine.loading import load_network
from tiny_llm_kit.engine.port import Port, resolve_serving
from tiny_llm_kit.model.quantization import QUANTIZATIONS
from tiny_llm_kit.trace.provenance import provenance
from tiny_llm_kit.trace.recorder import Recorder
from tiny_llm_kit.trace.serve import EndlessTokenizer
from tiny_llm_kit.trace.shapes import SHAPES, RandomCheckpoint, check_layers, random_network
from tiny_llm_kit.trace.trace import Trace, percentile
from tiny_llm_kit.trace.workload import Workload

from .contest import OURS, PEERS
from .datasets import BY_STEPS, DATASETS, DatasetSize, dataset
from .engine_load import EngineLoad
from .options import COUNT, check_context, option
from .throughput_peers import left_out, peers

# Other ways to run our own engine, as options of it.
VARIANTS = {
    "unchunked": {"enable_chunked_prefill": False, "max_num_batched_tokens": None},
    "separate": {"policy": "separate"},
    "uncached": {"enable_prefix_caching": False},
}
CONTESTANTS = [*VARIANTS, *PEERS]
# Fields of a plan that are options of the engine.
ENGINE = (
    "enable_chunked_prefill", "max_num_batched_tokens", "max_num_seqs", "block_size", "num_blocks", "policy", "seed",
    "bucketing_strategy",
)  # fmt: skip
FLAG = {"action": "store_true"}


def policies() -> list[str]:
    """The names of all policies of the scheduler."""
    return ["hybrid", "separate", *resolve_serving("ref").POLICIES]


@dataclass(frozen=True)
class ThroughputPlan:
    """What to measure. The first eleven are options of vLLM's benchmark_throughput.py."""

    model: str = option("tiny-qwen3", "a shipped name, a folder or a hub id", type=model_argument)
    trust_remote_code: bool = option(False, "accepted; no remote code is ever run", **FLAG)
    enforce_eager: bool | None = option(
        None, "run the model as it is written, or compile it first", action=BooleanOptionalAction
    )
    num_prompts: int = option(16, "requests", **COUNT)
    input_len: int = option(128, "tokens of a prompt", **COUNT)
    output_len: int = option(32, "tokens of an answer", **COUNT)
    dataset: str = option("random", f"{', '.join(DATASETS)}, or a file", metavar="NAME")
    max_num_batched_tokens: int | None = option(None, "tokens of a step", **COUNT)
    max_num_seqs: int = option(16, "requests that run at a time", **COUNT)
    enable_chunked_prefill: bool = option(True, "else whole prompts first", action=BooleanOptionalAction)
    quantization: str | None = option(None, choices=sorted(QUANTIZATIONS))
    head_quantization: str | None = option(None, "of the output head alone", choices=sorted(QUANTIZATIONS))
    policy: str = option("hybrid", "one forward per step, or two; or of Day 3.5", choices=policies())
    bucketing_strategy: str | None = option(
        None, "pad steps to few shapes", choices=["exponential", "linear", "padding-aware"]
    )
    config: str | None = option(
        None, "instead of --model: a shape with random weights", choices=sorted(SHAPES)
    )
    random_weights: bool = option(False, "of --model read the shape alone", **FLAG)
    layers: int | None = option(None, "with random weights: fewer layers than the shape has", **COUNT)
    block_size: int = option(128, "tokens of a KV block", **COUNT)
    num_blocks: int | None = option(None, "KV blocks; default: what fits", **COUNT)
    compare: tuple[str, ...] = option(
        (), f"in turns: {', '.join(CONTESTANTS)}", choices=CONTESTANTS, nargs="+", metavar="WHAT"
    )
    dtype: str = option("auto", choices=DTYPES)
    threads: int = option(os.cpu_count() or 1, **COUNT)
    rounds: int = option(3, "runs of each, taken in turns, after one that is not counted", **COUNT)
    seed: int = option(0, "of the prompts", type=whole_number(0))

    def __post_init__(self):
        peers = [name for name in self.compare if name in PEERS]
        if peers and self.dataset in BY_STEPS:
            raise ValueError(
                f"--compare {peers[0]}: prompts of --dataset {self.dataset} arrive among our engine's steps; compare "
                f"it with {', '.join(VARIANTS)}"
            )


class Generates(Protocol):
    """What is timed: returns when the host has every token."""

    def generate(self, workload: Workload) -> None: ...


class OurGenerator:
    """Our engine as a contestant, run as `LLM.generate` runs it, with figures of its last run.

    Args:
        llm: of this course.
    """

    def __init__(self, llm: LLM):
        self.llm = llm
        self.figures: dict[str, Any] = {}

    def generate(self, workload: Workload) -> None:
        """Answers all requests; no prefix of an earlier run is cached."""
        engine = self.llm.engine
        engine.reset_prefix_cache()
        counts, recorder = Counts(engine), Recorder(engine.max_num_batched_tokens)
        engine.scheduler.model = counts
        load = EngineLoad(engine, workload)
        with engine.heard_by(recorder, counts):
            load.run()
        cached = sum(request.output().num_cached_tokens for request in load.requests)
        self.figures = {**latencies(recorder.trace()), **counts.figures(), "cached_tokens": cached}


class Counts:
    """Counts calls of the model, preemptions and KV blocks in use: a listener, and a `PackedModel` around the engine's.

    Args:
        engine: whose.
    """

    def __init__(self, engine: LLMEngine):
        self._engine = engine
        self.calls = self.preemptions = self.peak_blocks = 0
        self._before = replace(engine.runner.waste)

    def __call__(self, event: Any) -> None:
        self.preemptions += event.kind == "preempt"

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine.runner, name)

    def run(self, batch: Any) -> list[Any]:
        """See `PackedModel.run`. Blocks are counted here: after the call, those that have ended have none."""
        allocator = self._engine.allocator
        self.calls += 1
        self.peak_blocks = max(self.peak_blocks, allocator.num_blocks - allocator.num_free)
        return self._engine.runner.run(batch)

    def figures(self) -> dict[str, int]:
        """So far."""
        waste = self._engine.runner.waste.since(self._before)
        return {
            "calls": self.calls,
            "preemptions": self.preemptions,
            "peak_blocks": self.peak_blocks,
            "num_blocks": self._engine.allocator.num_blocks,
            "compiled_shapes": self._engine.num_shapes,
            "setup_seconds": self._engine.setup_seconds,
            "scheduled_tokens": waste.tokens,
            "computed_tokens": waste.padded_tokens,
            "scheduled_pages": waste.pages,
            "computed_pages": waste.padded_pages,
        }


def latencies(trace: Trace) -> dict[str, float | None]:
    """TTFT and time between tokens of all requests, in seconds; None where there is no gap."""
    ttfts = [lane.ttft for lane in trace.lanes]
    found = {f"ttft_p{p}": percentile(ttfts, p) for p in (50, 90, 99)}
    found |= {f"tbt_p{p}": percentile(trace.gaps, p) if trace.gaps else None for p in (50, 90, 99)}
    return {**found, "longest_gap": trace.longest_gap}


def measure(
    plan: ThroughputPlan, port: Port, load_options: Mapping[str, Any], progress: Callable
) -> dict[str, Any]:
    """Seconds of every contestant in every round, and our figures. Each round has new prompts.

    Args:
        load_options: of `load_network`, for a model with its own weights.
        progress: told what runs now.

    Raises:
        ValueError: the plan contradicts itself, or a contestant cannot run here.
    """
    before = provenance(port.device)
    port.backend_module.set_threads(plan.threads)
    network, tokenizer, checkpoint = model_of(plan, port, load_options)
    check_context(plan.input_len + plan.output_len, network.config.max_position_embeddings)
    sizes = DatasetSize(plan.num_prompts, plan.input_len, plan.output_len, network.config.vocab_size)

    def workload(number: int) -> Workload:
        return dataset(plan.dataset, sizes, plan.seed + number, plan.max_num_seqs, tokenizer)

    workloads = [workload(number) for number in range(plan.rounds + 1)]
    room = max(each.max_seq_len for each in workloads)
    check_context(room - 1, network.config.max_position_embeddings)
    cast = contestants(plan, port, network, checkpoint, room)
    runs: dict[str, list[dict]] = {name: [] for name in cast}
    names = list(cast)
    for number, each in enumerate(workloads):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            progress(f"{name}, run {number} of {plan.rounds}")
            runs[name].append(timed(cast[name], each))
    return {
        "kind": "throughput",
        "backend": port.name,
        "plan": {**plan.__dict__, "dtype": port.float_dtype, "compare": list(plan.compare)},
        "provenance": before,
        "dataset": workloads[-1].says,
        "notes": [f"{name}: {each.notes}" for name, each in cast.items() if getattr(each, "notes", "")],
        "left_out": left_out(plan, port),
        "budget": next(iter(cast.values())).llm.engine.max_num_batched_tokens,
        "runs": {name: kept[1:] for name, kept in runs.items()},
    }


def timed(contestant: Generates, workload: Workload) -> dict[str, Any]:
    """One run: its seconds, its requests, and the contestant's own figures if it has any."""
    start = time.perf_counter()
    contestant.generate(workload)
    seconds = time.perf_counter() - start
    asked = {
        "requests": len(workload.requests),
        "prompt_tokens": sum(spec.tokens for spec in workload.requests),
        "output_tokens": sum(spec.answer for spec in workload.requests),
    }
    return {"seconds": seconds, **asked, **getattr(contestant, "figures", {})}


def model_of(plan: ThroughputPlan, port: Port, load_options: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    """The network, its tokenizer, and the checkpoint if its weights are random."""
    if not check_layers(plan.config, plan.random_weights, plan.layers):
        given = {**load_options, "head_quantization": plan.head_quantization}
        network, tokenizer = load_network(port, plan.model, "week3", plan.quantization, **given)
        return network, tokenizer, None
    shape = plan.model, plan.config, plan.layers
    network, checkpoint = random_network(port, *shape, plan.quantization, plan.head_quantization)
    return network, EndlessTokenizer(), checkpoint


def contestants(
    plan: ThroughputPlan, port: Port, network: Any, checkpoint: RandomCheckpoint | None, room: int
) -> dict[str, Any]:
    """Our engine first, then what it is compared with, on the same weights."""
    options = {
        "max_model_len": min(room, network.config.max_position_embeddings),
        **{name: getattr(plan, name) for name in ENGINE},
        "enforce_eager": plan.enforce_eager,
    }
    cast: dict[str, Any] = {OURS: OurGenerator(LLM.of(port, network, EndlessTokenizer(), **options))}
    network = cast[OURS].llm.engine.network  # whose weights are packed already, if it was compiled
    for name in plan.compare:
        if name in VARIANTS:
            llm = LLM.of(port, network, EndlessTokenizer(), **{**options, **VARIANTS[name]})
            cast[f"{OURS} {name}"] = OurGenerator(llm)
        else:
            cast |= peers(name, plan, port, checkpoint, room)
    return cast
