"""The tokens of a server's steps by default: as many as keep its longest step with a decode below a target of time.

A batch without a listener keeps the large budget: nobody waits for its next token. What is measured is kept as that of
`product_choice` is, for each model, its options and the target.
"""

import os
import re
from collections.abc import Mapping, Sequence

from tiny_llm_engine.engine_options import CHUNKED_BUDGET
from tiny_llm_engine.llm_engine import LLMEngine

from .product_choice import kept_seconds
from .step_timer import StepTimer

BUDGETS = (64, 128, 256, 512)  # tokens
TARGET = 0.25  # seconds
VARIABLE = "TINY_LLM_MAX_STEP_SECONDS"  # the target, where none is given
STEP = "step"  # the only name in the file
# What changes the cost of a step, besides the model and its products.
OPTIONS = ("block_size", "kv_cache_dtype", "max_num_seqs", "policy")


def begin_with_short_steps(engine: LLMEngine) -> str:
    """Give the steps of an engine whose tokens somebody reads their default budget.

    A new loop, after a reset of the prefix cache, begins with it too.

    Returns:
        What was measured and chosen, in one line, if anything was measured.

    Raises:
        ValueError: the environment variable is not a number of seconds.
    """
    new_loop, usual = engine.new_loop, max(CHUNKED_BUDGET, engine.options.max_num_seqs)
    target = target_of(getattr(engine.options, "max_step_seconds", 0.0))
    seconds = measured_seconds(engine, target) if target and can_measure(engine) else {}
    budget = budget_of(seconds, target, usual)

    def loop_with_budget(*arguments):
        loop = new_loop(*arguments)
        loop.scheduler.max_num_batched_tokens = budget
        return loop

    engine.new_loop = loop_with_budget
    engine.loop.scheduler.max_num_batched_tokens = budget
    return in_words(seconds, target, budget)


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
    return not shapes.is_compiled and shapes.buckets is None and ranks.size == 1 and bool(sizes_of(engine))


def sizes_of(engine: LLMEngine) -> list[int]:
    """Budgets to measure: each holds a token for every request, and no more than the longest prompt."""
    return [size for size in BUDGETS if engine.options.max_num_seqs < size <= engine.max_model_len]


def measured_seconds(engine: LLMEngine, target: float) -> Mapping[int, float]:
    """The seconds of the longest step by its tokens, up to the first above the target; from the file or measured."""
    options = {name: getattr(engine.options, name) for name in OPTIONS}
    model = f"{engine.network.config} in {engine.port.float_dtype}, {engine.products}"
    what = {"model": model, **options, "max_model_len": engine.max_model_len, "target": target}
    kept = kept_seconds(engine.port, what, {STEP}, lambda: {STEP: measure(engine, sizes_of(engine), target)})
    return kept[STEP]


def measure(engine: LLMEngine, sizes: Sequence[int], target: float) -> dict[int, float]:
    """Time steps of a decode and a chunk, both after half of the context, until one takes longer than the target."""
    past, seconds = engine.max_model_len // 2, dict[int, float]()
    timer = StepTimer(engine.names, engine.runner, engine.options.block_size, past - 1)
    for size in sizes:
        seconds[size] = timer.seconds(size, 1, max(0, min(past, engine.max_model_len - size)))
        if seconds[size] > target:
            break
    return seconds


def budget_of(seconds: Mapping[int, float], target: float, usual: int) -> int:
    """The largest measured budget below the target, or the smallest one; `usual` where none takes longer."""
    within = [size for size, each in seconds.items() if each <= target]
    return usual if len(within) == len(seconds) else max(within, default=min(seconds))


def in_words(seconds: Mapping[int, float], target: float, budget: int) -> str:
    """A choice in one line; nothing where nothing was measured."""
    if not seconds:
        return ""
    times = ", ".join(f"{size} take {each:.2f} s" for size, each in sorted(seconds.items()))
    return f"steps of at most {budget:,} tokens (max_step_seconds is {target:g}; at most {times})"
