"""Memory of a process that serves thousands of short requests, with dtype and batch size of a real engine."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tiny_llm_engine.solutions.port import Port

from .harness import make_llm

STATM = Path("/proc/self/statm")
SEQS, PROMPT, ANSWER, BLOCK = 64, 16, 4, 16  # requests at a time; tokens
WAVE, REPORT = 100, 1000  # requests


def resident_bytes() -> int:
    """Memory of this process that is in RAM.

    Raises:
        ValueError: the system does not report it.
    """
    if not STATM.exists():
        raise ValueError(f"--requests reads {STATM}, which only Linux has: run it there, or in a container")
    return int(STATM.read_text(encoding="utf-8").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def soak_memory(port: Port, seed: int, count: int, on_report: Callable[[int, int], object]) -> None:
    """Serve `count` short requests; call on_report(requests, bytes) at the start and after each thousand."""
    llm = make_llm(port, max_num_seqs=SEQS, max_model_len=2 * (PROMPT + ANSWER), block_size=BLOCK)
    rng, vocabulary = np.random.default_rng(seed), llm.engine.network.config.vocab_size
    params = llm.engine.names.SamplingParams(max_tokens=ANSWER, ignore_eos=True)
    on_report(0, resident_bytes())
    for served in range(0, count, WAVE):
        sizes = rng.integers(1, PROMPT + 1, min(WAVE, count - served))
        prompts = [rng.integers(0, vocabulary, size).tolist() for size in sizes]
        llm.generate(prompts, params, use_tqdm=False)
        done = served + len(prompts)
        if done % REPORT == 0 or done == count:
            on_report(done, resident_bytes())
