"""A soak test of the engine: random requests for minutes, and every answer compared with the request served alone.

Prompts share prefixes, answers differ in length, requests are cancelled at random, and the pool is so small that
running requests are preempted.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tiny_llm_engine.engine_request import EngineRequest
from tiny_llm_engine.outputs import CompletionOutput
from tiny_llm_engine.solutions.port import Port

from .harness import Counts, Harness, pressed_llm

CANCELS = 0.02  # probability that a step is followed by a cancellation


@dataclass
class SoakCounts(Counts):
    """The counts of a soak of the engine."""

    requests: int = 0
    tokens: int = 0
    cancelled: int = 0
    cached_tokens: int = 0


class Soak(Harness[SoakCounts]):
    """One model twice: in an engine under pressure, and alone.

    Args:
        port: whose code runs; its type is float32.
        seed: determines everything random.
        options: passed on to the engine under pressure.
    """

    def __init__(self, port: Port, seed: int = 0, **options: Any):
        super().__init__(port, seed, SoakCounts())
        self.pressed = pressed_llm(port, **options)

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
        self.check_memory(engine, lambda: engine.num_open)

    def _request(self) -> EngineRequest:
        prompt, most = self.prompts.draw()
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
        output = request.output()
        answer, who = output.outputs[0], f"request {output.request_id}"
        self.counts.requests += 1
        self.counts.tokens += len(answer.token_ids)
        if answer.finish_reason == "abort":
            self.counts.cancelled += 1
        self.counts.preemptions += output.metrics.num_preemptions
        self.counts.cached_tokens += output.num_cached_tokens
        expected = self.expected(request.prompt_token_ids, request.sampling.max_tokens)
        place = first_difference(answer.token_ids, expected.token_ids)
        if place is not None:
            what = f"token {place} of the answer is not that of the request alone"
            self.differs(who, place, expected, what)
        elif answer.finish_reason != "abort" and ended(answer) != ended(expected):
            self.fail(who, f"ended with {ended(answer)}, and alone with {ended(expected)}: {answer.error}")


def ended(answer: CompletionOutput) -> tuple[str, int]:
    """Why an answer ended, and after how many tokens."""
    return answer.finish_reason, len(answer.token_ids)


def first_difference(actual: list[int], expected: list[int]) -> int | None:
    """Index of the first difference of two answers, None if `actual` is a prefix of `expected`."""
    pairs = enumerate(zip(actual, expected, strict=False))
    beyond = len(expected) if len(actual) > len(expected) else None
    return next((place for place, (a, z) in pairs if a != z), beyond)
