"""Latencies and counters from a scheduler's events. Reads no clock."""

import math
from collections import deque
from collections.abc import Hashable, Sequence
from typing import Any

from tiny_llm_engine.events import Event, number_of


def percentile(values: Sequence[float], p: float) -> float:
    """The p-th percentile by nearest rank: one of the values, never an interpolated one.

    Of n sorted values it is number ⌈p · n / 100⌉. So p99 of fewer than 100 values is the largest one.

    Raises:
        ValueError: there is no value, or p is not above 0 and at most 100.
    """
    if not values or not 0 < p <= 100:
        raise ValueError(f"no percentile {p} of {len(values)} values")
    # TASK 2.7.7: sort and take the value of that rank. Ranks count from 1.
    raise NotImplementedError("week 2 day 7 task 7: percentile")


class ChunkedPrefillMetrics:
    """Latencies of requests, and counts and times of chunks and decode steps, in seconds of one clock.

    TTFT, time to first token: from a request's arrival. TBT, time between tokens: from one token of a request to its
    next. TPOT, time per output token: from its first token to its last, divided by the tokens after the first.
    (Sarathi-Serve, Agrawal et al., 2024, uses TTFT and TBT; serving benchmarks often report TPOT.)

    Args:
        prefill_step: tokens of a chunk that a running request may have to wait for between two of its tokens.
        smoothing: weight of the newest chunk in `avg_chunk_time`.
        keep: number of the newest gaps and requests that are kept for percentiles; counters include all.

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
        self._waited = 0  # prompt tokens that running requests have waited for since their last token
        self._arrived: dict[Hashable, float] = {}
        self._seen: dict[Hashable, tuple[float, float, int]] = {}  # first token, last token, how many
        self._start = self._end = None  # times of the first and of the last record

    def on_event(self, event: Event) -> None:
        """Records an event of a scheduler. An end token does not count as a token. Given."""
        request = event.request
        if event.kind == "arrive":
            self.record_arrival(number_of(request), event.time)
        elif event.kind == "step":
            self._on_step(event)
        elif event.kind == "token":
            number = number_of(request)
            if len(request.tokens) > self._seen.get(number, (0, 0, 0))[2]:
                self.record_token(number, event.time)
        elif event.kind == "finish":
            self.record_finish(number_of(request), event.time)

    def _on_step(self, event: Event) -> None:
        for part in event.parts:
            if part.kind == "chunk":
                self.record_prefill_chunk(event.seconds_of(part), part.tokens, part.running)
            else:
                self.record_decode_step(event.seconds_of(part), part.tokens)

    def record_arrival(self, request_id: Hashable, time: float) -> None:
        """Records that a request starts to wait."""
        self._now(time)
        # TASK 2.7.7: TTFT is measured from here, however long the request waits for its prefill.
        raise NotImplementedError("week 2 day 7 task 7: ChunkedPrefillMetrics.record_arrival")

    def record_prefill_chunk(self, chunk_time: float, chunk_size: int, waiting_decodes: int = 0) -> None:
        """Records a computed chunk.

        Args:
            chunk_time: seconds.
            chunk_size: tokens.
            waiting_decodes: number of requests that were ready to decode and waited for the chunk.
        """
        self.prefill_chunks_processed += 1
        self.prefill_seconds += chunk_time
        # TASK 2.7.7: update the moving average's sum and the sum of its weights; then the stalls, if a request waited.
        # Between two tokens, a request may wait for one chunk of `prefill_step` tokens. Each further chunk that begins
        # before its next token is a stall, also when several are computed as one.
        raise NotImplementedError("week 2 day 7 task 7: ChunkedPrefillMetrics.record_prefill_chunk")

    # GIVEN: the definition of a stall, as an expression.
    def _stalls(self) -> int:
        """The number of chunks beyond the first that running requests waited for since their last token."""
        return max(math.ceil(self._waited / self.prefill_step) - 1, 0)

    def record_decode_step(self, decode_time: float, requests: int = 1) -> None:
        """Records a decode step: its seconds, and the number of requests that got a token."""
        # TASK 2.7.7: count the step, its requests and its seconds. Waiting starts again from 0.
        raise NotImplementedError("week 2 day 7 task 7: ChunkedPrefillMetrics.record_decode_step")

    def record_token(self, request_id: Hashable, time: float) -> None:
        """Records a new token of a request."""
        self.tokens += 1
        self._now(time)
        # TASK 2.7.7: the first token gives the TTFT, every further one a gap and a new TPOT.
        # A request without a recorded arrival has no TTFT. A gap is measured from the request's own previous token.
        raise NotImplementedError("week 2 day 7 task 7: ChunkedPrefillMetrics.record_token")

    def record_finish(self, request_id: Hashable, time: float) -> None:
        """Records the end of a request: only its latencies are kept. Given."""
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
        """The gaps between consecutive tokens of a request, for all requests, in the order in which they ended."""
        return list(self._gaps)

    @property
    def avg_chunk_time(self) -> float:
        """Exponential moving average of the seconds per chunk, without initial bias; 0 without chunks.

        The weights of n chunks add up to 1 − (1 − smoothing)ⁿ; the rest is the weight of the initial 0 (Kingma and Ba,
        2015, section 3).
        """
        # TASK 2.7.7: divide by the sum of the weights, if it is not 0.
        raise NotImplementedError("week 2 day 7 task 7: ChunkedPrefillMetrics.avg_chunk_time")

    @property
    def prefill_to_decode_ratio(self) -> float:
        """Seconds of prefill per second of decode; infinite without decodes."""
        # TASK 2.7.7: a ratio of times; that of the steps is the interleaving ratio.
        raise NotImplementedError("week 2 day 7 task 7: ChunkedPrefillMetrics.prefill_to_decode_ratio")

    def get_interleaving_ratio(self) -> float:
        """Chunks per decode step; infinite without decodes."""
        # TASK 2.7.7: a step counts once, however many requests it serves.
        raise NotImplementedError("week 2 day 7 task 7: ChunkedPrefillMetrics.get_interleaving_ratio")

    def summary(self) -> dict[str, Any]:
        """All figures for JSON: times in milliseconds, None where nothing was measured. Given."""
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
            "total_ms": None
            if self._start is None or self._end is None
            else 1000 * (self._end - self._start),
        }


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None
