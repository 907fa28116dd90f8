"""The screen of Day 3.7: who holds which part of a layer, what the sums between two ranks cost, and two stages."""

import os
from statistics import median
from typing import Any

from rich.console import Console

from tiny_llm_engine.models.config import ModelConfig
from tiny_llm_engine.models.hub import find_model
from tiny_llm_engine.models.weight_shapes import weight_shapes
from tiny_llm_engine.solutions.port import Port
from tiny_llm_engine.solutions.solution_types import ServingPackage
from tiny_llm_extensions.llm import LLM
from tiny_llm_extensions.parallel.link_speed import seconds_per_sum
from tiny_llm_extensions.parallel.rank_parts import RankPart
from tiny_llm_extensions.profiling.kv_budget import BYTES
from tiny_llm_extensions.profiling.step_timer import StepTimer

from ..trace.tables import figures_table
from .own_process import in_own_process
from .shared import MODEL
from .two_stages import show_stages

POOL = {"num_blocks": 64, "block_size": 64}
OPTIONS: dict[str, Any] = {**POOL, "max_num_batched_tokens": 512, "enforce_eager": True}
# Tokens of a step, and how many of them are decodes.
STEPS = {"1 decode": (1, 1), "16 decodes": (16, 16), "chunk of 256": (256, 0), "chunk of 512": (512, 0)}
# The matrices of a layer, one of each kind; the table; a norm.
SHOWN = (
    "model.layers.0.self_attn.q_proj.weight",
    "model.layers.0.self_attn.k_proj.weight",
    "model.layers.0.self_attn.o_proj.weight",
    "model.layers.0.mlp.gate_proj.weight",
    "model.layers.0.mlp.down_proj.weight",
    "model.embed_tokens.weight",
    "model.layers.0.input_layernorm.weight",
)
CONTEXT = 128  # tokens that each decode reads
SUMS = 20  # in a row, when one is measured
ROUNDS = 3  # of every measurement, in turns
# Bytes per second in one direction out of a card, to the other cards of its box, as the vendors publish it.
LINKS = {"Gaudi 2, 21 × 100 Gb/s": 21 * 12.5e9, "Gaudi 3, 21 × 200 Gb/s": 21 * 25e9}
# A model of the Gaudi guide's list, and its cards: hidden size, layers.
LARGE = ("Llama 3.1 70B", 8192, 80, 8)
SHOWN_ON = "torch"
MEASURED = (
    r"(?:\d+ decodes?|chunk of \d+)  .*",  # lines of tables
    r"(?:whole prompts|unequal chunks|uniform chunks)  .*",
    r"stage \d  .*",
    r" +0 +\d+ ms",
    r"[\d.]+(?= GB/s)",
)


def show(b: Port, console: Console) -> None:
    """A table of shards, then steps of one process beside those of two ranks."""
    _shards(b.serving, console)
    _steps(b, console)
    _links(console)
    console.print("\n`pdm run see 3.7 --sitting 2` shows two stages of a pipeline.")


def _shards(s: ServingPackage, console: Console) -> None:
    """Who holds what of a layer of the shipped model."""
    config = find_model(MODEL).config()
    shown = figures_table("rows × columns", "whole", "rank 0 of 2", "rank 1 of 2", "rank 3 of 4")
    places = [RankPart(s, 0, 2), RankPart(s, 1, 2), RankPart(s, 3, 4)]
    shapes = weight_shapes(config, layers=1)
    for name in SHOWN:
        shape = shapes[name]
        held = (_held(part, name, shape, config) for part in places)
        shown.add_row(name.split(".")[-2], _extent(*shape), *held)
    console.print(f"\nA layer of {MODEL}, the embedding and the head\n")
    console.print(shown)


def _held(part: RankPart, name: str, shape: tuple[int, ...], config: ModelConfig) -> str:
    shard = part.shard(name, shape, config)
    axes = zip(shape, (shard.rows, shard.columns), strict=False)
    return _extent(*(size if axis is None else axis for size, axis in axes))


def _extent(*axes: int | range) -> str:
    ends = (f"{axis.start}–{axis.stop - 1}" if isinstance(axis, range) else str(axis) for axis in axes)
    return " × ".join(ends)


def measure_steps(b: Port) -> list[list[float]]:
    """For each of `STEPS` the median seconds: by one process on one core and on all, by two ranks, and of a sum."""
    where = {"backend": b.name, "device": b.device, **OPTIONS}
    two, one = (LLM(MODEL, tensor_parallel_size=ranks, **where) for ranks in (2, 1))
    with one, two:
        return [medians(b, one, two, *step) for step in STEPS.values()]


def medians(b: Port, one: LLM, two: LLM, tokens: int, decodes: int) -> list[float]:
    """Time a step in turns, with `decodes` decodes and a chunk for the rest of the tokens."""
    width, cores, rounds = one.engine.network.config.hidden_size, os.cpu_count() or 1, []
    for _ in range(ROUNDS):
        seconds = []
        for llm, threads in ((one, 1), (one, cores), (two, max(1, cores // 2))):
            b.backend_module.set_threads(threads)
            timer = StepTimer(b.serving, llm.engine.runner, OPTIONS["block_size"], CONTEXT)
            seconds.append(timer.seconds(tokens, decodes))
        rounds.append((*seconds, seconds_per_sum(b, two.engine.extensions["ranks"], tokens, width, SUMS)))
    return [median(each) for each in zip(*rounds, strict=True)]


def _steps(b: Port, console: Console) -> None:
    """Step times of one process and of two ranks, and the time of the sums in them."""
    config, fastest = find_model(MODEL).config(), 0.0
    sums = 1 + 2 * config.num_hidden_layers
    columns = "bytes a sum", "ms a sum", "ms of sums", "1 core", "all cores", "2 ranks"
    shown = figures_table("a step of", *columns)
    for (name, (tokens, _)), found in zip(STEPS.items(), in_own_process(measure_steps, b), strict=True):
        *steps, one_sum = found
        size = tokens * config.hidden_size * BYTES[b.float_dtype]
        fastest = max(fastest, size / one_sum)
        row = [f"{size:,}", f"{1000 * one_sum:.2f}", f"{1000 * sums * one_sum:.1f}"]
        shown.add_row(name, *row, *(f"{1000 * seconds:.1f}" for seconds in steps))
    console.print(f"\nSteps of {sums} sums, in ms: by one process, and by two ranks that share the cores\n")
    console.print(shown)
    console.print(f"\nThe fastest sum moves {fastest / 1e9:.2f} GB/s over the loopback of this machine.")


def _links(console: Console) -> None:
    """What the sums of a large model would take between cards, by the bandwidth that is published for their links."""
    name, width, layers, cards = LARGE
    shown = figures_table("a step of", "bytes a sum", *LINKS)
    for tokens in (1, 32, 2048):
        size = 2 * tokens * width
        moved = 2 * (cards - 1) / cards * size * (1 + 2 * layers)
        times = (f"{1000 * moved / speed:.2f} ms" for speed in LINKS.values())
        shown.add_row(f"{tokens:,}", f"{size:,}", *times)
    console.print(
        f"\nComputed, not measured: all sums of a step of {name} in bf16 on {cards} cards,\n"
        "at the speed of the links alone. Every sum also has a latency.\n"
    )
    console.print(shown)


SITTINGS = (show, show_stages)
