"""Latencies of a run of any length: first tokens, gaps and delays, without the spans that `Recorder` keeps.

The requests that decode in one step have waited equally long, so gaps are kept in groups of equal ones.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tiny_llm_course.trace.trace import percentile
from tiny_llm_engine.events import RequestTimes
from tiny_llm_engine.solutions.solution_types import AnswerSequence, Event

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class Latencies:
    """Latencies of a run, in seconds."""

    ttfts: "np.ndarray"  # from each arrival to the first token
    delays: "np.ndarray"  # from each arrival to the admission
    # times between two tokens of a request, in groups of equal ones, and the sizes of the groups
    gaps: "np.ndarray"
    weights: "np.ndarray"
    requests: int  # how many arrived; how many ended with an error, or were aborted
    failed: int
    tokens: int  # of all answers
    end: float  # when the last token came, since the first arrival

    def ttft(self, p: float) -> float:
        """A percentile of the times to the first token."""
        return percentile(self.ttfts, p)

    def delay(self, p: float) -> float:
        """A percentile of the times to admission: the paper's scheduling delay."""
        return percentile(self.delays, p)

    def tbt(self, p: float) -> float | None:
        """A percentile of the times between tokens; None where no request has two."""
        return weighted_percentile(self.gaps, self.weights, p) if len(self.gaps) else None

    @property
    def longest_gap(self) -> float | None:
        return float(self.gaps.max()) if len(self.gaps) else None


def weighted_percentile(values: "np.ndarray", weights: "np.ndarray", p: float) -> float:
    """`percentile` of values that each stand for several; the result is one of the values."""
    import numpy as np

    order = np.argsort(values)
    reached = np.cumsum(weights[order])
    # The same rounding as NumPy's "inverted_cdf".
    return float(values[order][np.searchsorted(reached, reached[-1] * p / 100)])


class LatencyRecorder:
    """A listener that records latencies from the events of a scheduler."""

    def __init__(self):
        self._first: float | None = None  # when the first request arrived
        self._open: dict[int, RequestTimes] = {}
        self._ttfts, self._delays, self._gaps, self._weights = (array("d") for _ in range(4))
        self.requests = self.failed = self.tokens = 0
        self._end = 0.0

    def arrive(self, sequence: AnswerSequence, time: float) -> None:
        """Record that a request starts to wait."""
        self._first = time if self._first is None else self._first
        self._open[sequence.request_id] = RequestTimes(time)
        self.requests += 1

    def __call__(self, event: Event) -> None:
        if event.kind == "token":
            self._token(self._open[event.request.request_id], event.time)
        elif event.kind == "prefill":
            self._delays.append(event.time - self._open[event.request.request_id].arrival_time)
        elif event.kind == "finish":
            self._open.pop(event.request.request_id, None)
            if event.request.finish_reason in ("abort", "error"):
                self.failed += 1

    def _token(self, times: RequestTimes, time: float) -> None:
        gap = times.add_token(time)
        self.tokens += 1
        self._end = time
        if gap is None:
            self._ttfts.append(time - times.arrival_time)
        else:
            self._gap(gap)

    def _gap(self, gap: float) -> None:
        if self._gaps and self._gaps[-1] == gap:
            self._weights[-1] += 1
        else:
            self._gaps.append(gap)
            self._weights.append(1)

    def stretch(self, sequences: Sequence[AnswerSequence], times: "np.ndarray") -> None:
        """Record a token of each of these requests at each of these times."""
        import numpy as np

        for sequence in sequences:  # their previous tokens need not have come at the same time
            mine = self._open[sequence.request_id]
            self._gap(mine.add_token(float(times[0])) or 0.0)
            mine.last_token_time = float(times[-1])
        self._gaps.frombytes(np.diff(times).tobytes())
        self._weights.frombytes(np.full(len(times) - 1, float(len(sequences))).tobytes())
        self.tokens += len(sequences) * len(times)
        self._end = float(times[-1])

    def latencies(self) -> Latencies:
        """The latencies recorded so far."""
        import numpy as np

        ttfts, delays, gaps, weights = map(np.array, (self._ttfts, self._delays, self._gaps, self._weights))
        end = self._end - (self._first or 0.0)
        return Latencies(ttfts, delays, gaps, weights, self.requests, self.failed, self.tokens, end)
