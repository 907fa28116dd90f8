"""Steps of a server by default: as many tokens as keep one that somebody waits for below a target of time.

A token of a prompt costs more, the more tokens are before it, so the first chunk of a prompt is larger than its last.
Where nobody decodes, and in a batch without a listener, steps have the large budget. What is measured is kept like that
of `product_choice`, for each model and its options. A machine that is shared is faster or slower in the next hour, so
each step corrects what the later ones are expected to take.
"""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tiny_llm_engine.engine_options import CHUNKED_BUDGET
from tiny_llm_engine.events import Event
from tiny_llm_engine.llm_engine import LLMEngine
from tiny_llm_engine.scheduled import Scheduled

from .product_choice import kept_seconds
from .step_timer import StepTimer

SIZES = (64, 128, 256)  # tokens of the steps that are measured
LEAST = 64  # tokens of a first chunk, however long they take
TILE = 32  # rows that kernels multiply together: 129 rows of a step take as long as 160
WEIGHT = 0.25  # of the last step, beside those before it
UNLIKELY = 4  # times faster or slower than measured: a step that says more was held up by something else
TARGET = 0.25  # seconds
VARIABLE = "TINY_LLM_MAX_STEP_SECONDS"  # the target, where none is given
EMPTY, LONG = "empty", "long"  # the names in the file: by what is before the chunk
# What changes the cost of a step, besides the model and its products.
OPTIONS = ("block_size", "kv_cache_dtype", "max_num_seqs", "policy")


@dataclass(frozen=True)
class ChunkCost:
    """Seconds of a step: a + b · tokens + c · pairs, each token of a prompt with one before it or itself."""

    a: float
    b: float
    c: float

    @classmethod
    def of(cls, samples: Mapping[tuple[int, int], float]) -> "ChunkCost":
        """The cost that is nearest to samples, (tokens, past) to seconds, in relative terms. Nothing is below 0."""
        rows = np.array([(1, tokens, pairs(tokens, past)) for tokens, past in samples], np.float64)
        seconds = np.array(list(samples.values()))
        found = np.linalg.lstsq(rows / seconds[:, None], np.ones(len(seconds)), rcond=None)[0]
        return cls(*np.maximum(found, 0).tolist())

    def seconds(self, tokens: int, past: int = 0) -> float:
        """The cost of a step that computes `tokens` of a prompt after `past` others."""
        return self.a + self.b * tokens + self.c * pairs(tokens, past)

    def tokens_within(self, seconds: float, past: int, most: int) -> int:
        """The most tokens of such a step, up to `most`, that take so long; 0 if not one does."""
        sizes = np.arange(1, most + 1)
        return int(np.sum(self.a + self.b * sizes + self.c * sizes * (past + sizes / 2) <= seconds))


def pairs(tokens: int, past: int) -> float:
    """How many scores the attention of a chunk has."""
    return tokens * (past + tokens / 2)


@dataclass(eq=False)
class ShortSteps:
    """A `PlanHook` that cuts the chunks of a step for which a decode waits, and a listener that hears how long it took.

    Args:
        scheduler: of the loop that it is put on.
        cost: of a step.
        target: seconds of a step.
        budget: tokens of a step for which nobody waits. One that was changed by hand counts alone.
        slowness: seconds of the steps lately, by what they cost when they were measured.
    """

    scheduler: Any
    cost: ChunkCost
    target: float
    budget: int
    slowness: float = 1.0

    def limit(self, left: int, decodes: int) -> int:
        """See `PlanHook`. What comes before a chunk is known when it is planned."""
        return left

    def change(self, plan: list[Scheduled], calls: Sequence[Sequence[Scheduled]]) -> None:
        """Leaves each chunk the tokens for which the chunks before it leave time, and one at least.

        A chunk that is cut ends with a tile.
        """
        is_default = self.scheduler.max_num_batched_tokens == self.budget
        if not is_default or not any(one.is_decoding for one in self.scheduler.running):
            return
        left, least, rows = self.target / self.slowness, LEAST, 0
        for place, entry in enumerate(plan):
            if not entry.is_decode:
                size = max(least, self.cost.tokens_within(left, entry.start, entry.size))
                if size < entry.size:
                    entry = plan[place] = replace(entry, size=max(size - (rows + size) % TILE, 1))
                left -= self.cost.seconds(entry.size, entry.start) - self.cost.a
                least = 1
            rows += entry.size

    def on_event(self, event: Event) -> None:
        """Corrects the cost by a step that had chunks and decodes."""
        chunks = [part for part in event.parts if part.kind == "chunk"]
        if chunks and len(chunks) < len(event.parts):
            of_chunks = sum(self.cost.seconds(part.tokens, part.context) - self.cost.a for part in chunks)
            expected = self.cost.a + of_chunks
            measured = min(max(event.seconds / expected, 1 / UNLIKELY), UNLIKELY)
            self.slowness += WEIGHT * (measured - self.slowness)


def begin_with_short_steps(engine: LLMEngine) -> str:
    """Cut the steps of an engine whose tokens somebody reads to a target of time.

    A new loop, after a reset of the prefix cache, begins with that too.

    Returns:
        What was measured and what follows from it, in one line, if anything was measured.

    Raises:
        ValueError: the environment variable is not a number of seconds.
    """
    new_loop, budget = engine.new_loop, max(CHUNKED_BUDGET, engine.options.max_num_seqs)
    target = target_of(getattr(engine.options, "max_step_seconds", 0.0))
    cost = measured_cost(engine) if target and can_measure(engine) else None

    def with_short_steps(loop: Any) -> Any:
        loop.scheduler.max_num_batched_tokens = budget
        if cost is not None:
            steps = ShortSteps(loop.scheduler, cost, target, budget)
            loop.hooks.plan.append(steps)
            loop.events.listeners.append(steps.on_event)
        return loop

    engine.new_loop = lambda *arguments: with_short_steps(new_loop(*arguments))
    with_short_steps(engine.loop)
    return in_words(cost, target, budget, long_past(engine)) if cost else ""


def target_of(seconds: float | None) -> float:
    """A target in seconds; None reads TINY_LLM_MAX_STEP_SECONDS, and is 0.25. Raises ValueError if that is no time."""
    if seconds is not None:
        return seconds
    text = os.environ.get(VARIABLE) or str(TARGET)
    if not re.fullmatch(r"\d*\.?\d+", text):
        raise ValueError(f"{VARIABLE} is {text!r}: give seconds, or 0 for steps of {CHUNKED_BUDGET} tokens")
    return float(text)


def can_measure(engine: LLMEngine) -> bool:
    """Whether steps of any size can be run now: nothing is compiled or padded, and the model is in this process."""
    shapes, ranks = engine.extensions["shapes"], engine.extensions["ranks"]
    is_plain = not shapes.is_compiled and shapes.buckets is None and ranks.size == 1
    return is_plain and len(sizes_of(engine)) > 1


def sizes_of(engine: LLMEngine) -> list[int]:
    """Tokens of the steps to measure: a token for every request, and no more than the longest prompt."""
    return [size for size in SIZES if engine.options.max_num_seqs < size <= engine.max_model_len]


def long_past(engine: LLMEngine) -> int:
    """The past of the later chunks that are measured, in tokens: half of the context."""
    return min(engine.max_model_len // 2, engine.max_model_len - sizes_of(engine)[1])


def measured_cost(engine: LLMEngine) -> ChunkCost:
    """What a step with a decode costs, from the file of this machine or measured."""
    options = {name: getattr(engine.options, name) for name in OPTIONS}
    model = f"{engine.network.config} in {engine.port.float_dtype}, {engine.products}"
    what = {"model": model, **options, "max_model_len": engine.max_model_len, "steps": [*SIZES]}
    kept = kept_seconds(engine.port, what, {EMPTY, LONG}, lambda: measure(engine))
    return ChunkCost.of(
        {(size, past): each for name, past in pasts(engine) for size, each in kept[name].items()}
    )


def pasts(engine: LLMEngine) -> tuple[tuple[str, int], tuple[str, int]]:
    """What is before the chunks that are measured, by its name in the file."""
    return (EMPTY, 0), (LONG, long_past(engine))


def measure(engine: LLMEngine) -> dict[str, dict[int, float]]:
    """Seconds of steps of a decode and a chunk, by what is before the chunk and by their tokens."""
    timer = StepTimer(engine.names, engine.runner, engine.options.block_size, long_past(engine) - 1)
    sizes = sizes_of(engine)
    counts = {EMPTY: len(sizes), LONG: 2}  # the longest steps would take as long as all others
    return {
        name: {size: timer.seconds(size, 1, past) for size in sizes[: counts[name]]}
        for name, past in pasts(engine)
    }


def in_words(cost: ChunkCost, target: float, budget: int, past: int) -> str:
    """What follows from a cost, in one line."""
    first, later = (max(LEAST, cost.tokens_within(target, before, budget)) for before in (0, past))
    return (
        f"while answers are read, steps compute {first:,} tokens of a new prompt and {later:,} after {past:,}"
        f" (max_step_seconds is {target:g})"
    )
