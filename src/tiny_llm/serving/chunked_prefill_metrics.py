"""What users feel, and what the scheduler did for it: numbers from a scheduler's events. It reads no clock."""

import math
from collections import deque
from collections.abc import Hashable, Sequence
from typing import Any

from .events import Event


def percentile(values: Sequence[float], p: float) -> float:
    """The smallest of the values that is not exceeded by p per cent of them (nearest rank: no value is made up).

    With n values in order it is number ⌈p · n / 100⌉. So p99 of fewer than 100 values is the largest one.

    Raises:
        ValueError: there is no value, or p is not above 0 and at most 100.
    """
    if not values or not 0 < p <= 100:
        raise ValueError(f"no percentile {p} of {len(values)} values")
    # TASK 2.7.7: the value of that rank, in order. Ranks count from 1.
    raise NotImplementedError("week 2 day 7 task 7: percentile")


class ChunkedPrefillMetrics:
    """Latencies of the requests, and how chunks and decode steps took turns. All times are seconds of one clock.

    TTFT, time to first token: from a request's arrival. TBT, time between tokens: from one token of a request to its
    next. TPOT, time per output token: from its first token to its last, by the tokens after the first (Sarathi-Serve,
    Agrawal et al., 2024, uses TTFT and TBT; serving benchmarks often report TPOT).

    Args:
        prefill_step: tokens of a chunk, for which running requests agreed to wait between two of their tokens.
        smoothing: the weight of the newest chunk in `avg_chunk_time`.
        keep: so many of the newest gaps and requests are kept for the percentiles; the counters know all.

    Raises:
        ValueError: a number is out of range.
    """

    def __init__(self, prefill_step: int = 128, smoothing: float = 0.1, keep: int = 100_000):
        if prefill_step < 1 or keep < 1:
            raise ValueError(f"prefill_step is {prefill_step} and keep is {keep}: give at least 1")
        if not 0 < smoothing <= 1:
            raise ValueError(f"smoothing is {smoothing}: give a weight above 0 and at most 1")
        self.prefill_step, self.smoothing, self.keep = prefill_step, smoothing, keep
        self.requests = self.finished = self.tokens = 0
        self.prefill_chunks_processed = self.decode_steps = self.decode_requests_served = 0
        self.prefill_seconds = self.decode_seconds = 0.0
        self.stall_steps = 0
        self.ttft: dict[Hashable, float] = {}
        self.tpot: dict[Hashable, float] = {}
        self.longest_gap = 0.0
        self._gaps: deque[float] = deque(maxlen=keep)
        self._chunk_sum = self._chunk_weight = 0.0  # of the moving average
        self._waited = 0  # tokens of prompts that running requests have waited for since their last token
        self._arrived: dict[Hashable, float] = {}
        self._seen: dict[Hashable, tuple[float, float, int]] = {}  # first token, last token, how many
        self._start = self._end = None  # the first thing that was told, and the last

    def on_event(self, event: Event) -> None:
        """Takes the events of a scheduler. A token that only ends the text does not count. Given."""
        request = event.request
        if event.kind == "arrive":
            self.record_arrival(request.prompt_idx, event.time)
        elif event.kind == "step":
            self._on_step(event)
        elif event.kind == "token":
            if len(request.tokens) > self._seen.get(request.prompt_idx, (0, 0, 0))[2]:
                self.record_token(request.prompt_idx, event.time)
        elif event.kind == "finish":
            self.record_finish(request.prompt_idx, event.time)

    def _on_step(self, event: Event) -> None:
        for part in event.parts:
            if part.kind == "chunk":
                self.record_prefill_chunk(event.seconds_of(part), part.tokens, part.running)
            else:
                self.record_decode_step(event.seconds_of(part), part.tokens)

    def record_arrival(self, request_id: Hashable, time: float) -> None:
        """A request starts to wait."""
        self._now(time)
        # TASK 2.7.7: its TTFT counts from here, however long it waits for its prefill.
        raise NotImplementedError("week 2 day 7 task 7: ChunkedPrefillMetrics.record_arrival")

    def record_prefill_chunk(self, chunk_time: float, chunk_size: int, waiting_decodes: int = 0) -> None:
        """A chunk was computed.

        Args:
            chunk_time: seconds.
            chunk_size: tokens.
            waiting_decodes: requests that were ready to decode, and waited for it.
        """
        self.prefill_chunks_processed += 1
        self.prefill_seconds += chunk_time
        # TASK 2.7.7: the moving average's sum, and the sum of the weights in it; then the stalls, if anyone waited.
        # Since their last token, requests wait for one chunk of `prefill_step` tokens: that is agreed. Every further
        # one that is begun before their next token is a stall, also when several are computed as one.
        raise NotImplementedError("week 2 day 7 task 7: ChunkedPrefillMetrics.record_prefill_chunk")

    # GIVEN: the definition of a stall, as an expression.
    def _stalls(self) -> int:
        """How many chunks too many running requests have waited for since their last token."""
        return max(math.ceil(self._waited / self.prefill_step) - 1, 0)

    def record_decode_step(self, decode_time: float, requests: int = 1) -> None:
        """Every running request was served, so many of them, in so many seconds."""
        # TASK 2.7.7: count the step, its requests and its seconds. Nobody has waited since.
        raise NotImplementedError("week 2 day 7 task 7: ChunkedPrefillMetrics.record_decode_step")

    def record_token(self, request_id: Hashable, time: float) -> None:
        """A request has a new token."""
        self.tokens += 1
        self._now(time)
        # TASK 2.7.7: the first one gives its TTFT, every further one a gap and a new TPOT.
        # A request whose arrival was not told has no TTFT. The gap is to this request's own token before.
        raise NotImplementedError("week 2 day 7 task 7: ChunkedPrefillMetrics.record_token")

    def record_finish(self, request_id: Hashable, time: float) -> None:
        """A request has ended: only its latencies stay. Given."""
        self._now(time)
        self.finished += 1
        self._arrived.pop(request_id, None)
        self._seen.pop(request_id, None)
        for known in (self.ttft, self.tpot):
            while len(known) > self.keep:
                del known[next(iter(known))]

    def _now(self, time: float) -> None:
        self._start = time if self._start is None else self._start
        self._end = time

    @property
    def tbt(self) -> list[float]:
        """The gaps between tokens of one request, of all requests, in the order in which they ended."""
        return list(self._gaps)

    @property
    def avg_chunk_time(self) -> float:
        """Seconds of a chunk: an exponential moving average, unbiased from the first chunk on; 0 without chunks.

        The average of n chunks has the weight 1 − (1 − smoothing)ⁿ; the rest of it would be the 0 that it started from
        (Kingma and Ba, 2015, section 3).
        """
        # TASK 2.7.7: divide by the weight, if there is any.
        raise NotImplementedError("week 2 day 7 task 7: ChunkedPrefillMetrics.avg_chunk_time")

    @property
    def prefill_to_decode_ratio(self) -> float:
        """Seconds of prefill by seconds of decode; infinite without decodes."""
        # TASK 2.7.7: of time, not of steps: that is the interleaving ratio.
        raise NotImplementedError("week 2 day 7 task 7: ChunkedPrefillMetrics.prefill_to_decode_ratio")

    def get_interleaving_ratio(self) -> float:
        """Chunks by decode steps; infinite without decodes."""
        # TASK 2.7.7: a step counts once, however many requests it serves.
        raise NotImplementedError("week 2 day 7 task 7: ChunkedPrefillMetrics.get_interleaving_ratio")

    def summary(self) -> dict[str, Any]:
        """All of it for JSON: times in milliseconds; None where there is no number. Given."""
        latencies = {"ttft": list(self.ttft.values()), "tbt": self.tbt, "tpot": list(self.tpot.values())}
        return {
            "prefill_step": self.prefill_step,
            "requests": self.requests,
            "finished": self.finished,
            "tokens": self.tokens,
            "prefill_chunks_processed": self.prefill_chunks_processed,
            "decode_steps": self.decode_steps,
            "decode_requests_served": self.decode_requests_served,
            "stall_steps": self.stall_steps,
            "interleaving_ratio": _finite(self.get_interleaving_ratio()),
            "prefill_to_decode_ratio": _finite(self.prefill_to_decode_ratio),
            "avg_chunk_ms": 1000 * self.avg_chunk_time if self.prefill_chunks_processed else None,
            **{
                f"{name}_p{p}_ms": 1000 * percentile(seconds, p) if seconds else None
                for name, seconds in latencies.items()
                for p in (50, 99)
            },
            "longest_gap_ms": 1000 * self.longest_gap if self._gaps else None,
            "total_ms": 1000 * (self._end - self._start) if self._start is not None else None,
        }


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None
