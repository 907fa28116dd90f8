"""What the soaks share: random requests, the model alone that answers them again, and checks of memory."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from itertools import accumulate
from typing import Any, Generic, NoReturn, TypeVar

import numpy as np

from tiny_llm_course.trace.text import counted
from tiny_llm_engine.llm_engine import LLMEngine
from tiny_llm_engine.outputs import CompletionOutput
from tiny_llm_engine.solutions.port import Port
from tiny_llm_extensions.llm import LLM
from tiny_llm_extensions.loading import load_network

MODEL = "tiny-qwen3"
BLOCK, BLOCKS, SEQS, BUDGET = 4, 25, 6, 32  # six requests want 68 blocks on average, and 144 at most
PREFIXES, PREFIX, OWN, ANSWER = 4, 48, 24, 24  # tokens, at most
TIE = 1e-3  # two logits that are closer may change places when sums are taken in another order
SHAPE = {"num_blocks": BLOCKS, "block_size": BLOCK, "max_model_len": PREFIX + OWN + ANSWER}


class SoakError(AssertionError):
    """Raised for an answer that differs from that of the request alone, or memory that was not freed."""


@dataclass
class Counts:
    """The counts of a soak, and the answers that differ after a near tie."""

    preemptions: int = 0
    near_ties: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        numbers = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "near_ties"}
        numbers["near_ties"] = len(self.near_ties)
        return ", ".join(f"{number:,} {name.replace('_', ' ')}" for name, number in numbers.items())


def make_llm(port: Port, **options: Any) -> LLM:
    """The shipped model with an engine of its own."""
    return LLM.of(port, *load_network(port, MODEL, "week3"), **options)


def pressed_llm(port: Port, **options: Any) -> LLM:
    """An engine with so few blocks that running requests are preempted."""
    return make_llm(port, **SHAPE, max_num_seqs=SEQS, max_num_batched_tokens=BUDGET, **options)


C = TypeVar("C", bound=Counts)


class Prompts:
    """Draws requests: prompts that begin like others, or not, and the lengths of their answers."""

    def __init__(self, vocabulary: int, rng: np.random.Generator):
        self._vocabulary, self._rng = vocabulary, rng
        self._prefixes = [rng.integers(0, vocabulary, PREFIX).tolist() for _ in range(PREFIXES)]

    def draw(self) -> tuple[list[int], int]:
        """Draw token ids of a prompt, and the maximum number of tokens of its answer."""
        shared = self._prefixes[self._rng.integers(PREFIXES)][: self._rng.integers(0, PREFIX + 1)]
        own = self._rng.integers(0, self._vocabulary, self._rng.integers(1, OWN + 1)).tolist()
        return shared + own, int(self._rng.integers(1, ANSWER + 1))


class Harness(Generic[C]):
    """Random requests, and the model alone that answers each of them again.

    Args:
        port: whose code runs; its type is float32.
        seed: determines everything random.
        counts: filled by the soak.
        shape: of the engine that answers alone, where it is not `SHAPE`.
    """

    def __init__(self, port: Port, seed: int, counts: C, **shape: Any):
        self.seed, self.rng, self.counts = seed, np.random.default_rng(seed), counts
        self.alone = make_llm(port, **(shape or SHAPE), max_num_seqs=1, enable_prefix_caching=False)
        self.prompts = Prompts(self.alone.engine.network.config.vocab_size, self.rng)

    def expected(self, prompt: list[int], max_tokens: int) -> CompletionOutput:
        """The answer to a request alone, with the two most probable tokens of each position."""
        params = self.alone.engine.names.SamplingParams(max_tokens=max_tokens, logprobs=2)
        [alone] = self.alone.generate([prompt], params, use_tqdm=False)
        return alone.outputs[0]

    def first_difference(self, tokens: Sequence[int], text: str) -> int:
        """The first of the tokens whose text is not in this one."""
        add = self.alone.engine.tokenizer.detokenizer().add
        texts = accumulate(map(add, tokens))
        return next((place for place, each in enumerate(texts) if not text.startswith(each)), len(tokens))

    def differs(self, who: str, place: int, expected: CompletionOutput, what: str) -> None:
        """Count an answer that differs from this token on; raise SoakError unless there is a near tie."""
        if place >= len(expected.token_ids) or (difference := margin(expected, place)) >= TIE:
            self.fail(who, what)
        self.counts.near_ties.append(f"{who}, token {place}: margin {difference:.1e}")

    def check_memory(self, engine: LLMEngine, num_open: Callable[[], int], patience: float = 0.0) -> None:
        """Check that every block is free and no request is open, at the latest after `patience` seconds."""
        allocator = engine.allocator
        if not wait_until(lambda: allocator.num_free == allocator.num_blocks, patience):
            held = allocator.num_blocks - allocator.num_free
            self.fail("the last request", f"{held} blocks were not freed")
        if not wait_until(lambda: not num_open(), patience):
            self.fail("the last request", f"still open: {counted(num_open(), 'request')}")

    def fail(self, who: str, what: str) -> NoReturn:
        """Raise SoakError with the seed."""
        raise SoakError(f"seed {self.seed}, {who}: {what}")


def margin(answer: CompletionOutput, place: int) -> float:
    """Log-probability margin between the two most probable tokens at a position."""
    first, second = sorted((each.logprob for each in answer.logprobs[place].values()), reverse=True)[:2]
    return first - second


def wait_until(is_so: Callable[[], bool], seconds: float) -> bool:
    """Wait until a condition holds; return whether it did within these seconds."""
    end = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() >= end:
            return False
        time.sleep(0.01)
    return True
