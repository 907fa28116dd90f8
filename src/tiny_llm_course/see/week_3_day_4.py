"""The screen of Day 3.4: the number of shapes, their use by a load, and the memory left for the cache.

The learner's scheduler and buckets serve a load in virtual time. Then the shipped model answers in padded steps, and
the torch port measures the largest step.
"""

from collections import Counter
from dataclasses import dataclass, field
from itertools import starmap
from typing import Any

import numpy as np
from rich.console import Console

from tiny_llm_engine.models.tokenizer import load_tokenizer
from tiny_llm_engine.packed_model import inputs_of
from tiny_llm_engine.packed_runner import PaddingWaste
from tiny_llm_engine.solutions.port import Port
from tiny_llm_engine.solutions.solution_types import (
    AnswerSequence,
    Buckets,
    Event,
    PackedBatch,
    Sampled,
    ServingPackage,
)
from tiny_llm_extensions.make_loop import make_loop
from tiny_llm_extensions.profiling.engine_profiling import profiling_batch
from tiny_llm_extensions.profiling.kv_budget import kv_bytes_per_token
from tiny_llm_extensions.runners import packed_runner

from ..trace.serve import endless_sequence
from ..trace.simulation.simulated_model import SimulatedPackedModel
from ..trace.simulation.step_cost import StepWork
from ..trace.tables import figures_table
from .shared import MODEL, chats, run_all, shipped

BUDGET, SEQS, PAGE, LEN = 512, 16, 128, 2048
STRATEGIES = ("exponential", "linear", "padding-aware")
# Limits of a step by the options of the engine, see `Buckets`.
ENGINES = {
    "hybrid": {},
    "hybrid, no sharing": {"chunk_readers": 1},
    "two calls, no sharing": {"chunk_readers": 1, "decode_readers": 1},
    "only rows are padded": {"pad_pages": False},
}
# Options of each served load. With `adaptive` a chunker chooses sizes by the cost of the steps.
RUNS = {
    "whole prompts": {"enable_chunked_prefill": False, "max_num_batched_tokens": LEN},
    "chunks": {"max_num_batched_tokens": BUDGET},
    "adaptive": {"max_num_batched_tokens": BUDGET, "adaptive": True},
    "two calls": {"max_num_batched_tokens": BUDGET, "mixed_steps": False},
}
MEMORY = 48 * 2**20  # bytes for the largest step, and for keys and values
PEAK, LEFT, PREEMPTED = "MiB for the largest step", "blocks for keys and values", "preemptions"
MEASURED = tuple(rf"(?<={row})[ \d.]+" for row in (PEAK, LEFT, PREEMPTED))


def show(b: Port, console: Console) -> None:
    """Count shapes, serve a load in four ways, and let the shipped model answer in padded steps."""
    s = b.serving
    _count_shapes(s, console)
    _compare(s, console)
    _serve(b, s, console)


def show_torch(b: Port, console: Console) -> None:
    """Show the largest step's memory, what it leaves for keys and values, and how often that is too little."""
    s = b.serving
    network = b.Qwen3ModelWeek3(shipped(b))
    block = PAGE * kv_bytes_per_token(network.config, b.float_dtype)
    rows: dict[str, list[str]] = {PEAK: [], LEFT: [], PREEMPTED: []}
    peaks = {count: _peak_bytes(b, s, network, count) for count in (BUDGET, LEN)}
    for options in RUNS.values():
        peak = peaks[options["max_num_batched_tokens"]]
        blocks = (MEMORY - peak) // block
        values = f"{peak / 2**20:.1f}", str(blocks), str(ServedLoad(s, blocks, options).preemptions)
        for row, value in zip(rows.values(), values, strict=True):
            row.append(value)
    memory = f"{MEMORY // 2**20} MiB for a step and for keys and values"
    console.print(f"\n{memory}, as the shipped model needs them\n")
    _print(console, "measured", list(RUNS), rows)


def _peak_bytes(b: Port, s: ServingPackage, network, count: int) -> int:
    runner = b.packed_runner(network, 1, PAGE)
    batch = profiling_batch(s, count, SEQS, LEN, PAGE)
    return b.peak_bytes(lambda: (runner.run(batch), b.array([0]))[1])


def _count_shapes(s: ServingPackage, console: Console) -> None:
    """Print the lengths of warm-up lists: steps of decodes, and steps with chunks."""
    console.print(f"budget {BUDGET} tokens, {SEQS} requests, pages of {PAGE} tokens")
    console.print("shapes to warm up: steps of decodes + steps with chunks\n")
    table = figures_table("", "context", *STRATEGIES)
    for name, limits in ENGINES.items():
        for length in (2048, 8192):
            counts = (_lengths(s, strategy, length, limits) for strategy in STRATEGIES)
            table.add_row(name, f"{length:,}", *counts)
            name = ""
    console.print(table)


def _lengths(s: ServingPackage, strategy: str, length: int, limits: dict[str, Any]) -> str:
    listed = s.make_buckets(strategy, BUDGET, SEQS, length, PAGE, **limits).warm_up_list()
    decodes = sum(bucket.tokens == bucket.rows for bucket in listed)
    return f"{decodes} + {len(listed) - decodes} = {len(listed)}"


@dataclass
class ServedLoad:
    """A load under one way to cut prompts, in virtual time."""

    s: ServingPackage  # the names of `serving`
    blocks: int  # KV blocks
    options: dict[str, Any]  # of `make_loop`, and "adaptive"
    met: Counter = field(default_factory=Counter)
    waste: PaddingWaste = field(default_factory=PaddingWaste)
    preemptions: int = 0
    prompt_calls: int = 0
    pairs: int = 0
    padded_pairs: int = 0

    def __post_init__(self):
        s, options = self.s, dict(self.options)
        if options.pop("adaptive", False):
            options["chunker"] = s.AdaptiveChunker(0.03, sizes=(64, 128, 256))
        readers = 1 if options.get("enable_chunked_prefill", True) else 0
        two_calls = not options.get("mixed_steps", True)
        self.buckets = s.make_buckets(
            "exponential",
            options["max_num_batched_tokens"],
            SEQS,
            LEN,
            PAGE,
            chunk_readers=readers,
            decode_readers=1 if two_calls else readers * SEQS,
        )
        model = SimulatedPackedModel(s.Sampled, max_model_len=LEN)
        self._run, model.run = model.run, self._count
        allocator = s.BlockAllocator(self.blocks, PAGE, watermark=0.0, enable_prefix_caching=False)
        heard = {"clock": model.clock, "on_event": self._hear, **options}
        loop = make_loop(s, "hybrid", model, allocator, max_num_seqs=SEQS, buckets=self.buckets, **heard)
        self.sizes = _load()
        run_all(loop, starmap(self._sequence, enumerate(self.sizes)))

    def _sequence(self, number: int, sizes: tuple[int, int]) -> AnswerSequence:
        prompt, answer = sizes
        return endless_sequence(self.s, [0] * prompt, answer, LEN, number)

    def _hear(self, event: Event) -> None:
        self.preemptions += event.kind == "preempt"
        self.prompt_calls += sum(part.kind == "chunk" for part in event.parts)

    def _count(self, batch: PackedBatch) -> list[Sampled]:
        bucket, work = self.buckets.of(batch), StepWork.of_batch(batch)
        self.met[bucket] += 1
        self.waste.count(batch, bucket, PAGE)
        self.pairs += work.chunk_pairs + work.decode_pairs
        # Every row with every row, every row with the pages of chunks, and each page of a decode with one row.
        self.padded_pairs += (
            bucket.tokens * (bucket.tokens + (bucket.chunk_pages or 0) * PAGE)
            + (bucket.decode_pages or 0) * PAGE
        )
        return self._run(batch)


def _load() -> list[tuple[int, int]]:
    """Token counts of 32 prompts and their answers: many short ones, some long, all there at the start."""
    rng = np.random.default_rng(34)
    prompts = np.clip(rng.lognormal(5.5, 1.0, 32), 8, 1900).astype(int)
    return list(zip(prompts.tolist(), rng.integers(16, 129, 32).tolist(), strict=True))


def _compare(s: ServingPackage, console: Console) -> None:
    runs = [ServedLoad(s, SEQS * LEN // PAGE, options) for options in RUNS.values()]
    tokens = sum(prompt for prompt, _ in runs[0].sizes)
    console.print(f"\n{len(runs[0].sizes)} prompts of {tokens:,} tokens together, exponential buckets\n")
    rows = {
        "graphs that the load met": [f"{len(run.met)}" for run in runs],
        "graphs to warm up": [f"{len(run.buckets.warm_up_list())}" for run in runs],
        "largest step, tokens": [f"{run.buckets.chunk_tokens[-1]:,}" for run in runs],
        "calls of the model": [f"{sum(run.met.values())}" for run in runs],
        "calls per prompt": [f"{run.prompt_calls / len(run.sizes):.2f}" for run in runs],
        "padding among rows": [f"{100 * run.waste.token_share:.0f} %" for run in runs],
        "padding among pages": [f"{100 * run.waste.page_share:.0f} %" for run in runs],
        "attention, computed / needed": [f"{run.padded_pairs / run.pairs:.1f} ×" for run in runs],
    }
    _print(console, "", list(RUNS), rows)


def _print(console: Console, head: str, names: list[str], rows: dict[str, list[str]]) -> None:
    table = figures_table(head, *names)
    for name, values in rows.items():
        table.add_row(name, *values)
    console.print(table)


def _serve(b: Port, s: ServingPackage, console: Console) -> None:
    """Serve the shipped model in exact and in padded steps: other shapes, the same answers."""
    network = b.Qwen3ModelWeek3(shipped(b))
    exact, padded = (
        _answers(b, s, network, buckets) for buckets in (None, s.make_buckets("exponential", 32, 4, 96, 8))
    )
    console.print(f"\nthe shipped model: {exact[1]} shapes in exact steps, {padded[1]} in padded ones")
    answers = "the same" if exact[0] == padded[0] else "DIFFERENT: padding is seen"
    console.print(f"the answers are {answers}")


def _answers(b: Port, s: ServingPackage, network, buckets: Buckets | None) -> tuple[list[str], int]:
    """The answers to five questions, and the number of shapes in which they were computed."""
    allocator, tokenizer = s.BlockAllocator(48, 8), load_tokenizer(MODEL)
    runner, shapes = packed_runner(b, network, 48, 8, buckets=buckets), set()
    run = runner.run

    def counted(batch):
        inputs = inputs_of(batch, 8, 48, None, s.flat_blocks)
        if buckets is not None:
            inputs = s.pad_inputs(inputs, buckets.of(batch), 8, 48)
        shapes.add(tuple(None if part is None else len(part) for part in inputs.flatten()))
        return run(batch)

    runner.run = counted
    limits: dict[str, Any] = {"max_num_batched_tokens": 32, "max_num_seqs": 4}
    loop = make_loop(s, "hybrid", runner, allocator, buckets=buckets, **limits)
    questions = ("What is RoPE?", "What is a KV cache?", "Thank you", "What is attention?")
    sequences = chats(s, tokenizer, questions, sampling=s.SamplingParams(max_tokens=24), max_seq_len=96)
    run_all(loop, sequences)
    return [sequence.text for sequence in sequences], len(shapes)
