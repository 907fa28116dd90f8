"""Measures what a step of the shipped model costs on this machine: the lines of `cost_fit`.

What counts is the processor's own time, of all threads, and not the time that passes: on a CPU with one thread they
are the same, but for what else the machine does.
"""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from benchmarks.model_calls import Week2Calls
from tiny_llm_course.trace.provenance import provenance
from tiny_llm_course.trace.simulation.cost_fit import fit_line
from tiny_llm_course.trace.simulation.step_cost import pairs
from tiny_llm_course.trace.workload import prompt_of
from tiny_llm_engine.backends.samples import interleave
from tiny_llm_engine.solutions.port import Port
from tiny_llm_extensions.loading import load_network

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
    port.backend_module.set_threads(1)
    model, _ = load_network(port, MODEL, "week2")
    steps = {**dict(_chunks(port, model)), **dict(_decodes(port, model))}
    seconds = interleave(steps, rounds, clock=time.process_time, progress=progress)
    chunks = [
        {"tokens": n, "pairs": pairs(n, context), "seconds": seconds["chunk", n, context]}
        for n, context in CHUNKS
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
        "prefill": line_of(chunks),
        "decode": line_of(decodes),
        "samples": {"prefill": chunks, "decode": decodes},
    }


def line_of(cases: Sequence[dict]) -> dict[str, float]:
    """The line through the medians: its a, b and c in seconds, and `error`, the largest share by which it misses one.

    Args:
        cases: `tokens` of a step, its `pairs`, and all samples of its `seconds`.

    Raises:
        ValueError: the line falls somewhere.
    """
    medians = [(case["tokens"], case["pairs"], statistics.median(case["seconds"])) for case in cases]
    found = fit_line(medians, passes=1)
    if 0 in (found.a, found.b):
        raise ValueError("more work took less time: the machine was too busy, so measure again")
    error = max(abs(found.seconds(tokens, seen) / seconds - 1) for tokens, seen, seconds in medians)
    return {**asdict(found), "error": error}


def _chunks(port: Port, model: Any) -> Iterator[tuple[tuple, Callable]]:
    """Computes one chunk after a context, and removes it again."""
    runner = port.runner(model)
    caches = {context: runner.create_kv_cache(WHOLE[-1]) for _, context in CHUNKS}
    for context, cache in caches.items():
        if context:
            runner.prefill(prompt_of(context, model.config.vocab_size), 0, cache, sample=False)

    def run(tokens: int, context: int) -> None:
        runner.prefill(prompt_of(tokens, model.config.vocab_size), context, caches[context], sample=False)
        for layer in caches[context]:
            layer.rewind(tokens)

    for case in CHUNKS:
        yield ("chunk", *case), partial(run, *case)


def _decodes(port: Port, model: Any) -> Iterator[tuple[tuple, Callable]]:
    """Computes a few decode steps of this many rows."""
    for case in DECODES:
        batch = Week2Calls(port, model)
        batch.fill(*case, DECODE_STEPS)
        yield ("decode", *case), batch.decode
