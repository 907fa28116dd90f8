"""Memory of a process that serves thousands of short requests, with dtype and batch size of a real engine."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tiny_llm_kit.engine.llm import LLM
from tiny_llm_kit.engine.loading import load_network
from tiny_llm_kit.engine.port import Port

from .engine_soak import MODEL

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


class MemorySoak:
    """Serves random short requests and reports the process's memory.

    Prompts have many lengths, and so have steps.

    Args:
        port: whose code runs.
        seed: of the prompts.
    """

    def __init__(self, port: Port, seed: int = 0):
        network, tokenizer = load_network(port, MODEL, "week3")
        shape = {"max_num_seqs": SEQS, "max_model_len": 2 * (PROMPT + ANSWER), "block_size": BLOCK}
        self.llm = LLM.of(port, network, tokenizer, **shape)
        self.rng, self._vocabulary = np.random.default_rng(seed), network.config.vocab_size

    def run(self, count: int, on_report: Callable[[int, int], object]) -> None:
        """Serve `count` requests; call on_report(requests, bytes) at the start and after each thousand."""
        params = self.llm.engine.names.SamplingParams(max_tokens=ANSWER, ignore_eos=True)
        on_report(0, resident_bytes())
        for served in range(0, count, WAVE):
            size = min(WAVE, count - served)
            self.llm.generate([self._prompt() for _ in range(size)], params, use_tqdm=False)
            if (served + size) % REPORT == 0 or served + size == count:
                on_report(served + size, resident_bytes())

    def _prompt(self) -> list[int]:
        return self.rng.integers(0, self._vocabulary, self.rng.integers(1, PROMPT + 1)).tolist()
