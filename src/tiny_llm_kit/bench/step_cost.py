"""What a step of the shipped model costs on this machine, as two lines: for the book's widget of Week 2 Day 7.

    seconds of a chunk  = a + b · tokens + c · tokens · context
    seconds of a decode = d + e · rows

The first is the line that Day 2.7 learns, from Sarathi-Serve's profiling (Agrawal et al., 2024); the second leaves the
length of the texts out, and so holds for texts of about `DECODE_CONTEXT` tokens.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from ..loading import load_network
from ..port import Port
from .ours import Ours
from .provenance import provenance
from .samples import interleave

MODEL = "tiny-qwen3"
# Chunks at every depth of a prompt, and whole prompts: what the widget draws.
CHUNKS, CONTEXTS, WHOLE = (32, 128, 512), (0, 512, 1024, 2048), (1024, 2048, 3072)
CASES = [
    *((tokens, context) for context in CONTEXTS for tokens in CHUNKS),
    *((tokens, 0) for tokens in WHOLE),
]
ROWS, DECODE_CONTEXT, DECODE_STEPS = (1, 2, 4, 8), 512, 4


def measure(port: Port, rounds: int, threads: int = 1, progress: Callable = iter) -> dict[str, Any]:
    """Seconds of chunks and of decode steps, interleaved, and the lines through their medians.

    Raises:
        ValueError: a line falls: the machine was too busy.
    """
    before = provenance(port.device)
    port.kit.set_threads(threads)
    model, _ = load_network(port, MODEL, "week2")
    steps = {**dict(_chunks(port, model)), **dict(_decodes(port, model))}
    seconds = interleave(steps, rounds, progress=progress)
    chunks = [
        {"tokens": tokens, "context": context, "seconds": seconds["chunk", tokens, context]}
        for tokens, context in CASES
    ]
    decodes = [
        {"rows": rows, "seconds": [sample / DECODE_STEPS for sample in seconds["decode", rows]]}
        for rows in ROWS
    ]
    return {
        "kind": "step cost",
        "model": MODEL,
        "backend": port.name,
        "dtype": port.float_dtype,
        "threads": threads,
        "rounds": rounds,
        "decode_context": DECODE_CONTEXT,
        "provenance": before,
        **lines(chunks, decodes),
        "chunks": chunks,
        "decodes": decodes,
    }


def lines(chunks: Sequence[dict], decodes: Sequence[dict]) -> dict[str, dict[str, float]]:
    """`cost`: a to e, in seconds. `error`: how far a line is from a median at most, as a share of it.

    Args:
        chunks: `tokens`, `context` and all samples of `seconds`.
        decodes: `rows` and `seconds`.
    """
    chunk = fit([(1, case["tokens"], case["tokens"] * case["context"]) for case in chunks], _medians(chunks))
    decode = fit([(1, case["rows"]) for case in decodes], _medians(decodes))
    return {
        "cost": dict(zip("abcde", (*chunk[0], *decode[0]), strict=True)),
        "error": {"chunk": chunk[1], "decode": decode[1]},
    }


def fit(terms: Sequence[Sequence[float]], seconds: Sequence[float]) -> tuple[list[float], float]:
    """The factors of the terms that come closest to the seconds, and the largest error as a share of them.

    Every error counts as a share of its own measurement, so that short steps are met as well as long ones.

    Raises:
        ValueError: a factor is negative.
    """
    shares = np.array(terms, np.float64) / np.array(seconds)[:, None]
    factors = np.linalg.lstsq(shares, np.ones(len(seconds)), rcond=None)[0]
    if (factors < 0).any():
        raise ValueError("more work took less time: the machine was too busy, so measure again")
    return factors.tolist(), float(np.abs(shares @ factors - 1).max())


def _medians(cases: Sequence[dict]) -> list[float]:
    return [float(np.median(case["seconds"])) for case in cases]


def _chunks(port: Port, model: Any) -> Iterator[tuple[tuple, Callable]]:
    """What computes one chunk behind a context, and forgets it again."""
    runner = port.runner(model)
    caches = {context: runner.create_kv_cache(WHOLE[-1]) for context in CONTEXTS}
    for context in CONTEXTS[1:]:
        runner.step([_tokens(context)], [0], caches[context], sample_rows=[])

    def run(tokens: int, context: int) -> None:
        runner.step([_tokens(tokens)], [context], caches[context], sample_rows=[])
        for layer in caches[context]:
            layer.rewind(tokens)

    for case in CASES:
        yield ("chunk", *case), partial(run, *case)


def _decodes(port: Port, model: Any) -> Iterator[tuple[tuple, Callable]]:
    """What computes a few decode steps of so many rows."""
    for rows in ROWS:
        batch = Ours(port, model)
        batch.fill(rows, DECODE_CONTEXT, DECODE_STEPS)
        yield ("decode", rows), batch.decode


def _tokens(count: int) -> list[int]:
    """Some ids of the vocabulary; which they are changes no time."""
    return [7919 * position % 3000 for position in range(count)]
