"""Memory of a process that serves thousands of short requests, with dtype and batch size of a real engine."""

from collections.abc import Callable

import numpy as np

from tiny_llm_engine.machine import ram
from tiny_llm_engine.solutions.port import Port

from .harness import make_llm

SEQS, PROMPT, ANSWER, BLOCK = 64, 16, 4, 16  # requests at a time; tokens
WAVE, REPORT = 100, 1000  # requests


def soak_memory(port: Port, seed: int, count: int, on_report: Callable[[int, int], object]) -> None:
    """Serve `count` short requests; call on_report(requests, bytes) at the start and after each thousand.

    Raises:
        ValueError: the system does not report the memory of a process.
    """
    if ram.resident_bytes() is None:
        raise ValueError(
            f"--requests reads {ram.STATM}, which only Linux has: run it there, or in a container"
        )
    llm = make_llm(port, max_num_seqs=SEQS, max_model_len=2 * (PROMPT + ANSWER), block_size=BLOCK)
    rng, vocabulary = np.random.default_rng(seed), llm.engine.network.config.vocab_size
    params = llm.engine.names.SamplingParams(max_tokens=ANSWER, ignore_eos=True)
    on_report(0, ram.resident_bytes())
    for served in range(0, count, WAVE):
        sizes = rng.integers(1, PROMPT + 1, min(WAVE, count - served))
        prompts = [rng.integers(0, vocabulary, size).tolist() for size in sizes]
        llm.generate(prompts, params, use_tqdm=False)
        done = served + len(prompts)
        if done % REPORT == 0 or done == count:
            on_report(done, ram.resident_bytes())
