"""What a step of the shipped model costs on this machine, as two lines: for the book's widget of Week 2 Day 7.

The lines are those of the simulated model: seconds = a + b·tokens + c·tokens·context, one for the chunks of a prompt,
one for decode steps. The context is how many tokens a token sees, on average.

What counts is the processor's own time, of all threads, and not the time that passes: on a CPU with one thread they
are the same, but for what else the machine does.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from ...runtime.loading import load_network
from ...runtime.port import Port
from ..simulated_model import pairs
from .ours import Ours
from .provenance import provenance
from .samples import interleave

MODEL = "tiny-qwen3"
# Chunks at every depth of a prompt, and whole prompts: what the widget draws. (tokens, context before them)
WHOLE = (1024, 2048, 3072)
CHUNKS = [
    *((tokens, context) for context in (0, 512, 1024, 2048) for tokens in (32, 128, 512)),
    *((tokens, 0) for tokens in WHOLE),
]
# Steps of a batch. (rows, context before each of their tokens)
DECODES = [(rows, context) for context in (256, 1024, 2816) for rows in (1, 2, 4, 8)]
DECODE_STEPS = 4


def measure(port: Port, rounds: int, progress: Callable = iter) -> dict[str, Any]:
    """Seconds of chunks and of decode steps on one thread of a CPU, interleaved, and the lines through their medians.

    Raises:
        ValueError: a line falls: the machine was too busy.
    """
    before = provenance(port.device)
    port.kit.set_threads(1)
    model, _ = load_network(port, MODEL, "week2")
    steps = {**dict(_chunks(port, model)), **dict(_decodes(port, model))}
    seconds = interleave(steps, rounds, clock=time.process_time, progress=progress)
    chunks = [
        {
            "tokens": tokens,
            "pairs": pairs(tokens, context),
            "seconds": seconds["chunk", tokens, context],
        }
        for tokens, context in CHUNKS
    ]
    decodes = [
        {
            "tokens": rows,
            "pairs": rows * (context + 1),
            "seconds": [sample / DECODE_STEPS for sample in seconds["decode", rows, context]],
        }
        for rows, context in DECODES
    ]
    return {
        "kind": "step cost",
        "model": MODEL,
        "backend": port.name,
        "dtype": port.float_dtype,
        "threads": 1,
        "clock": "processor time",
        "rounds": rounds,
        "provenance": before,
        "prefill": line(chunks),
        "decode": line(decodes),
        "samples": {"prefill": chunks, "decode": decodes},
    }


def line(cases: Sequence[dict]) -> dict[str, float]:
    """The line that comes closest to the medians: its a, b and c in seconds.

    Every error counts as a share of its own median, so that short steps are met as well as long ones; `error` is the
    largest of them.

    Args:
        cases: `tokens` of a step, its `pairs` of a token and one that it sees, and all samples of its `seconds`.

    Raises:
        ValueError: the line falls.
    """
    medians = np.array([np.median(case["seconds"]) for case in cases])
    terms = np.array([(1.0, case["tokens"], case["pairs"]) for case in cases]) / medians[:, None]
    factors = np.linalg.lstsq(terms, np.ones(len(cases)), rcond=None)[0]
    if (factors < 0).any():
        raise ValueError("more work took less time: the machine was too busy, so measure again")
    error = np.abs(terms @ factors - 1).max()
    return dict(zip(("a", "b", "c", "error"), map(float, (*factors, error)), strict=True))


def _chunks(port: Port, model: Any) -> Iterator[tuple[tuple, Callable]]:
    """What computes one chunk behind a context, and forgets it again."""
    runner = port.runner(model)
    caches = {context: runner.create_kv_cache(WHOLE[-1]) for _, context in CHUNKS}
    for context, cache in caches.items():
        if context:
            runner.prefill(_tokens(context), 0, cache, sample=False)

    def run(tokens: int, context: int) -> None:
        runner.prefill(_tokens(tokens), context, caches[context], sample=False)
        for layer in caches[context]:
            layer.rewind(tokens)

    for case in CHUNKS:
        yield ("chunk", *case), partial(run, *case)


def _decodes(port: Port, model: Any) -> Iterator[tuple[tuple, Callable]]:
    """What computes a few decode steps of so many rows."""
    for case in DECODES:
        batch = Ours(port, model)
        batch.fill(*case, DECODE_STEPS)
        yield ("decode", *case), batch.decode


def _tokens(count: int) -> list[int]:
    """Some ids of the vocabulary; which they are changes no time."""
    return [7919 * position % 3000 for position in range(count)]
