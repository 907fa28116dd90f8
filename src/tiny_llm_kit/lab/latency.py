"""Latencies of served requests, from the events that a scheduler tells. Arithmetic only: the times come from outside.

TTFT, time to first token: from the start, when all prompts are there, to the first token of one request.
TBT, time between tokens: from one token of a request to its next one. A token that only ends the text is none.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any


def percentile(values: Sequence[float], p: float) -> float:
    """The smallest of the values that is not exceeded by p per cent of them (nearest rank: no value is made up).

    With n values in order it is number ⌈p · n / 100⌉. So p99 of fewer than 100 values is the largest one. NumPy calls
    this "inverted_cdf".

    Raises:
        ValueError: there is no value, or p is not above 0 and at most 100.
    """
    if not values or not 0 < p <= 100:
        raise ValueError(f"no percentile {p} of {len(values)} values")
    import numpy as np  # here: `--help` of the commands that report latencies needs no NumPy

    return np.percentile(values, p, method="inverted_cdf").item()


class Trace:
    """When each token of each request came. A listener for a scheduler's events.

    Args:
        start: when all prompts were there, in seconds of the clock of the events.
    """

    def __init__(self, start: float):
        self.start = self.end = start
        self._times: dict[int, list[float]] = {}

    def __call__(self, event: Any) -> None:
        self.end = event.time
        if event.kind != "token":
            return
        times = self._times.setdefault(event.request.prompt_idx, [])
        # The event of an end token adds nothing to the request's tokens.
        if len(event.request.tokens) > len(times):
            times.append(event.time)

    @property
    def tokens(self) -> int:
        return sum(map(len, self._times.values()))

    @property
    def first(self) -> list[float]:
        """TTFT in seconds of every request that had a token."""
        return [times[0] - self.start for times in self._times.values() if times]

    @property
    def between(self) -> list[float]:
        """TBT in seconds, every gap of every request."""
        gaps = (pair for times in self._times.values() for pair in pairwise(times))
        return [later - earlier for earlier, later in gaps]

    @property
    def tokens_per_second(self) -> float:
        """All tokens of all requests by the time from the start to the last event; 0 when no time has passed."""
        return self.tokens / (self.end - self.start) if self.end > self.start else 0.0


def figures(trace: Trace) -> list[str]:
    """The trace as texts. What was not seen is left out."""
    texts = []
    for name, seconds in (("TTFT", trace.first), ("TBT", trace.between)):
        if seconds:
            p50, p99 = (1000 * percentile(seconds, p) for p in (50, 99))
            texts.append(f"{name} p50 {p50:.1f} ms, p99 {p99:.1f} ms")
    if trace.tokens_per_second:
        texts.append(f"{trace.tokens_per_second:.1f} tokens/s")
    return texts
