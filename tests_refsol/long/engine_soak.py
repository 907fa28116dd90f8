"""A soak test of the engine: random requests for minutes, and every answer compared with the request served alone.

Prompts share prefixes, answers differ in length, requests are cancelled at random, and the pool is so small that
running requests are preempted.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tiny_llm_kit.engine.engine_request import EngineRequest
from tiny_llm_kit.engine.llm import LLM
from tiny_llm_kit.engine.llm_engine import LLMEngine
from tiny_llm_kit.engine.loading import load_network
from tiny_llm_kit.engine.port import Port

MODEL = "tiny-qwen3"
BLOCK, BLOCKS, SEQS, BUDGET = 4, 25, 6, 32  # six requests want 68 blocks on average, and 144 at most
PREFIXES, PREFIX, OWN, ANSWER = 4, 48, 24, 24  # tokens, at most
TIE = 1e-3  # two logits that are closer may change places when sums are taken in another order
CANCELS = 0.02  # probability that a step is followed by a cancellation


class SoakError(AssertionError):
    """Raised for an answer that differs from that of the request alone, or memory that was not freed."""


@dataclass
class SoakCounts:
    """The counts of a soak."""

    requests: int = 0
    cancelled: int = 0
    preemptions: int = 0
    cached_tokens: int = 0
    tokens: int = 0
    near_ties: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return (
            f"{self.requests:,} requests, {self.tokens:,} tokens, {self.cancelled:,} cancelled, "
            f"{self.preemptions:,} preemptions, {self.cached_tokens:,} tokens from the prefix cache, "
            f"{len(self.near_ties)} near ties"
        )


class Prompts:
    """Draws requests: prompts that begin like others, or not, and the lengths of their answers.

    Args:
        vocabulary: number of token ids.
        rng: source of the draws.
    """

    def __init__(self, vocabulary: int, rng: np.random.Generator):
        self._vocabulary, self._rng = vocabulary, rng
        self._prefixes = [rng.integers(0, vocabulary, PREFIX).tolist() for _ in range(PREFIXES)]

    def draw(self) -> tuple[list[int], int]:
        """Draw token ids of a prompt, and the maximum number of tokens of its answer."""
        shared = self._prefixes[self._rng.integers(PREFIXES)][: self._rng.integers(0, PREFIX + 1)]
        own = self._rng.integers(0, self._vocabulary, self._rng.integers(1, OWN + 1)).tolist()
        return shared + own, int(self._rng.integers(1, ANSWER + 1))


class Soak:
    """One model twice: in an engine under pressure, and alone.

    Args:
        port: whose code runs; its type is float32.
        seed: of everything random.
        options: of the engine under pressure, beside those above.
    """

    def __init__(self, port: Port, seed: int = 0, **options: Any):
        network, tokenizer = load_network(port, MODEL, "week3")
        pressed = {"num_blocks": BLOCKS, "max_num_seqs": SEQS, "max_num_batched_tokens": BUDGET, **options}
        shape = {"block_size": BLOCK, "max_model_len": PREFIX + OWN + ANSWER}
        self.pressed = LLM.of(port, network, tokenizer, **shape, **pressed)
        alone = {"num_blocks": BLOCKS, "max_num_seqs": 1, "enable_prefix_caching": False}
        self.alone = LLM.of(port, network, tokenizer, **shape, **alone)
        self.rng, self.seed, self.counts = np.random.default_rng(seed), seed, SoakCounts()
        self._prompts = Prompts(network.config.vocab_size, self.rng)

    def run(
        self, seconds: float, on_wave: Callable[[SoakCounts], object] = lambda counts: None
    ) -> SoakCounts:
        """Run waves of requests until the time is over, at least one.

        Raises:
            SoakError: something is wrong.
        """
        end = time.monotonic() + seconds
        while True:
            self.wave(int(self.rng.integers(4, 12)))
            on_wave(self.counts)
            if time.monotonic() >= end:
                return self.counts

    def wave(self, count: int) -> None:
        """Serve this many requests that arrive over some steps; check every answer, and that nothing is left."""
        engine, waiting = self.pressed.engine, [self._request() for _ in range(count)]
        served: list[EngineRequest] = []
        while waiting or engine.has_work_remaining():
            for _ in range(min(len(waiting), int(self.rng.integers(0, 4)))):
                served.append(waiting.pop())
                engine.add(served[-1])
            engine.step()
            self._maybe_cancel(served)
        engine.collect_results()
        for request in served:
            self._check(request)
        self._check_memory(engine)

    def _request(self) -> EngineRequest:
        prompt, most = self._prompts.draw()
        engine = self.pressed.engine
        return engine.request(None, prompt, engine.names.SamplingParams(max_tokens=most))

    def _maybe_cancel(self, served: list[EngineRequest]) -> None:
        open_ones = [request for request in served if not request.is_done]
        if open_ones and self.rng.random() < CANCELS:
            open_ones[self.rng.integers(len(open_ones))].abort()

    def _check(self, request: EngineRequest) -> None:
        """Compare an answer with that of the request alone; after a near tie it may differ.

        A cancelled request is compared as far as it came.
        """
        output, counts = request.output(), self.counts
        answer = output.outputs[0]
        counts.requests += 1
        counts.tokens += len(answer.token_ids)
        counts.cancelled += answer.finish_reason == "abort"
        counts.preemptions += output.metrics.num_preemptions
        counts.cached_tokens += output.num_cached_tokens
        params = self.alone.engine.names.SamplingParams(max_tokens=request.sampling.max_tokens, logprobs=2)
        [alone] = self.alone.generate([request.prompt_token_ids], params, use_tqdm=False)
        expected = alone.outputs[0]
        differs = first_difference(answer.token_ids, expected.token_ids)
        if differs is not None:
            self._near_tie(output.request_id, differs, expected)
        elif answer.finish_reason != "abort" and ended(answer) != ended(expected):
            raise SoakError(
                f"{self._place(output.request_id)}: ended with {ended(answer)}, and alone with {ended(expected)}: "
                f"{answer.error}"
            )

    def _near_tie(self, number: str, differs: int, expected: Any) -> None:
        if differs < len(expected.token_ids) and (difference := margin(expected, differs)) < TIE:
            self.counts.near_ties.append(f"request {number}, token {differs}: margin {difference:.1e}")
            return
        raise SoakError(
            f"{self._place(number)}: token {differs} of the answer is not that of the request alone"
        )

    def _check_memory(self, engine: LLMEngine) -> None:
        allocator = engine.allocator
        if allocator.num_free != allocator.num_blocks:
            lost = allocator.num_blocks - allocator.num_free
            raise SoakError(f"{self._place('the last')}: {lost} blocks were not freed")
        if engine.num_open:
            raise SoakError(f"{self._place('the last')}: {engine.num_open} requests are still open")

    def _place(self, number: str) -> str:
        return f"seed {self.seed}, request {number}"


def margin(answer: Any, place: int) -> float:
    """Log-probability margin between the two most probable tokens at a position."""
    first, second = sorted((each.logprob for each in answer.logprobs[place].values()), reverse=True)[:2]
    return first - second


def ended(answer: Any) -> tuple[str, int]:
    """Why an answer ended, and after how many tokens."""
    return answer.finish_reason, len(answer.token_ids)


def first_difference(actual: list[int], expected: list[int]) -> int | None:
    """Index of the first difference of two answers, None if `actual` is a prefix of `expected`."""
    pairs = enumerate(zip(actual, expected, strict=False))
    beyond = len(expected) if len(actual) > len(expected) else None
    return next((place for place, (a, z) in pairs if a != z), beyond)
