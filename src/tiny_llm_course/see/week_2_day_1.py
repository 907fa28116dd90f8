"""The screen of Day 2.1: the cost of one more token by length of the text, without a cache and with one.

The second part, for the torch port alone, counts what a compiler for fixed shapes would have to compile.
"""

from collections.abc import Callable
from functools import partial

import numpy as np
from rich.console import Console
from rich.text import Text

from tiny_llm_engine.backends.samples import medians
from tiny_llm_engine.solutions.port import Port

from .shared import MODEL, shipped

CONTEXTS = (16, 64, 256, 1024)
ROUNDS = 5
BAR = 30  # cells of the longest bar
PROMPT, TOKENS = 5, 200
MEASURED = (r" *[\d,]+\.\d(?= (?:ms|tok/s|×))", r" *█+")


def show(b: Port, console: Console) -> None:
    """Time one more token after texts of several lengths, on the learner's two models."""
    checkpoint = shipped(b)
    console.print(
        f"One more token of {MODEL}. Without a cache all tokens are computed again,\n"
        "with the cache only the new one.\n"
    )
    times = _costs(b, checkpoint)
    longest = max(again for again, _ in times.values())
    for context, (again, cached) in times.items():
        console.print(_line(f"{context:5} tokens", "again", again, longest, "blue"))
        console.print(_line("", "cache", cached, longest, "yellow"))
    console.print(_summary(times))
    console.print(_memory(checkpoint.config))


def _costs(b: Port, checkpoint) -> dict[int, tuple[float, float]]:
    """Median seconds of one more token, without and with the cache, by context length."""
    week_1, week_2 = b.Qwen3ModelWeek1(checkpoint), b.Qwen3ModelWeek2(checkpoint)
    runs = {context: _runs(b, week_1, week_2, context) for context in CONTEXTS}
    timed = {(context, way): run for context in CONTEXTS for way, run in enumerate(runs[context])}
    seconds = medians(timed, ROUNDS)
    return {context: (seconds[context, 0], seconds[context, 1]) for context in CONTEXTS}


def _runs(b: Port, week_1, week_2, context: int) -> tuple[Callable, Callable]:
    """Two functions that compute the logits of one more token: without and with a cache."""
    ids = np.random.default_rng(0).integers(0, week_1.config.vocab_size, size=(1, context))
    text, token = b.array(ids), b.array(ids[:, -1:])
    caches = week_2.create_kv_cache(context)
    b.numpy(week_2(text, 0, caches, logits_to_keep=1))

    def again():
        return b.numpy(week_1(text)[:, -1])

    def cached():
        for cache in caches:
            cache.rewind(1)
        return b.numpy(week_2(token, context - 1, caches, logits_to_keep=1))

    return again, cached


def _line(context: str, name: str, seconds: float, longest: float, colour: str) -> Text:
    figures = f"{context:12}  {name} {1000 * seconds:8.1f} ms {1 / seconds:8.1f} tok/s  "
    return Text.assemble(figures, ("█" * max(1, round(BAR * seconds / longest)), colour))


def _summary(times: dict[int, tuple[float, float]]) -> str:
    (again, cached), (again_long, cached_long) = times[CONTEXTS[0]], times[CONTEXTS[-1]]
    return (
        f"\nAt {CONTEXTS[-1]} tokens one more costs {again_long / again:.1f} × as much as at {CONTEXTS[0]} "
        f"without the cache,\nand {cached_long / cached:.1f} × with it."
    )


def _memory(config) -> str:
    numbers = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim
    return (
        f"The price is memory: {config.num_hidden_layers} layers × {config.num_key_value_heads} K/V heads × "
        f"{config.head_dim} × 2 (key and value)\n= {numbers:,} numbers per token."
    )


class ConcatenatingCache:
    """The day's `ConcatenatedKvCache`, as a model of Week 2 calls a cache: the screen counts its programs."""

    def __init__(self, b: Port):
        self.cache, self.offset = b.ConcatenatedKvCache(), 0

    def next_positions(self, B: int) -> list[int]:
        return [self.offset] * B

    def num_keys(self, L: int) -> int:
        return self.offset + L

    def make_mask(self, L: int, dtype, *, positions=None) -> str | None:
        return None if L == 1 else "causal"

    def update_and_fetch(self, key, value, mask_length=None, mask=None, *, positions):
        self.offset += positions.shape[-1]
        return *self.cache.append(key, value), self.offset, mask


def show_torch(b: Port, console: Console) -> None:
    """Decode with both caches, and count the programs that a compiler would make."""
    model = b.Qwen3ModelWeek2(shipped(b))
    model.layers = model.layers[:1]  # all layers ask for the same
    console.print(f"\n{TOKENS} tokens, one by one. A compiler for fixed shapes would make:\n")
    for name, caches in (
        ("by concatenation", [ConcatenatingCache(b)]),
        ("by index", model.create_kv_cache(PROMPT + TOKENS)),
    ):
        programs, reads = signatures(b, model, caches, TOKENS)
        count = f"{programs:4} program{'s' if programs > 1 else ''}"
        console.print(Text.assemble(f"  a cache {name:16}", (f"  {count:15}", "bold"), f"{reads} host reads"))


def signatures(b: Port, model, caches, tokens: int) -> tuple[int, int]:
    """(different signatures, host reads) of this many decode steps after a short prompt.

    Positions are numbers in an array, as a Gaudi wants them: as Python's numbers they would be part of the program.
    """
    from ..recorded_operations import record  # imports torch, which this screen alone needs

    prompt = b.array(np.arange(PROMPT))
    model(prompt[None], prompt, caches, logits_to_keep=0)
    programs, reads = set(), 0
    for position in range(PROMPT, PROMPT + tokens):
        step = partial(model, b.array([[position % 7]]), b.array([position]), caches, logits_to_keep=1)
        recording = record(step)
        programs.add(recording.signature)
        reads += len(recording.host_reads)
    return len(programs), reads
