"""What the requests of one run felt: kept from the scheduler's events, with the solution's own metrics."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from .policies import Policy
from .prompts import Asked


@dataclass
class Outcome:
    """One policy's run. A listener for a scheduler's events.

    Args:
        policy: which one.
        asked: what was sent.
        requests: the same as requests of the solution; `prompt_idx` is their place.
        metrics: the solution's `ChunkedPrefillMetrics`.
        start: seconds of the clock, when the run began.
    """

    policy: Policy
    asked: Sequence[Asked]
    requests: Sequence[Any]
    metrics: Any
    start: float
    sent: dict[int, float] = field(default_factory=dict)
    finished: dict[int, float] = field(default_factory=dict)

    def send(self, index: int, time: float) -> None:
        """A request is sent. It may be heard later, when a step has ended: its waiting counts from now."""
        self.sent[index] = time
        self.metrics.record_arrival(index, time)

    def __call__(self, event: Any) -> None:
        if event.kind == "arrive":  # said before, by `send`
            return
        self.metrics.on_event(event)
        if event.kind == "finish":
            self.finished[event.request.prompt_idx] = event.time

    def ttft(self, index: int) -> float | None:
        """Seconds from sending to the first token; None when there was none."""
        return self.metrics.ttft.get(index)

    def latency(self, index: int) -> float | None:
        """Seconds from sending to the end; None when it did not come to its own end."""
        request = self.requests[index]
        if index not in self.finished or request.finish_reason in ("abort", "error"):
            return None
        return self.finished[index] - self.sent[index]

    @property
    def short_ttft(self) -> float | None:
        """The median of the short prompts."""
        return self._median_ttft(of_long=False)

    @property
    def long_ttft(self) -> float | None:
        """The median of the long prompts, who may pay for it."""
        return self._median_ttft(of_long=True)

    def _median_ttft(self, of_long: bool) -> float | None:
        times = [self.ttft(i) for i, asked in enumerate(self.asked) if asked.is_long == of_long]
        known = [time for time in times if time is not None]
        return median(known) if known else None

    @property
    def longest_gap(self) -> float | None:
        """Seconds between two tokens of one request, at most."""
        return self.metrics.longest_gap if self.metrics.tbt else None

    @property
    def total(self) -> float | None:
        """Seconds from the start to the last end."""
        return max(self.finished.values()) - self.start if self.finished else None
