"""A run of a scheduler as plain data: one lane per request, its spans, and figures that follow from them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tiny_llm_engine.events import TokenTimes
from tiny_llm_engine.models.files import Json

if TYPE_CHECKING:
    import numpy as np

WHOLE = 999_999  # the prefill step that computes every prompt whole


def percentile(values: "Sequence[float] | np.ndarray", p: float) -> float:
    """Nearest-rank percentile: the smallest value that at least p per cent of the values do not exceed.

    So p99 of fewer than 100 values is the largest one.

    Raises:
        ValueError: there is no value, or p is not above 0 and at most 100.
    """
    if not len(values) or not 0 < p <= 100:
        raise ValueError(f"no percentile {p} of {len(values)} values")
    import numpy as np  # here: `--help` of the commands that report latencies needs no NumPy

    return float(np.percentile(values, p, method="inverted_cdf"))


@dataclass(frozen=True)
class Span:
    """What one request did or waited for, from `start` to `end`, in seconds since the run began."""

    request: int  # the number of its lane
    # "queued" before its prompt is begun; "chunk" of its prompt; "paused" between two chunks, while a shorter
    # prompt goes first; "decode", a step that gave it a token; between two of these "waiting" while a chunk of
    # another prompt is computed, or "stall" while more of prompts is computed than was agreed
    kind: str
    start: float  # seconds
    end: float  # seconds
    # of a chunk its own; of a decode step one for each running request; of "waiting" and "stall" those of the
    # prompts
    tokens: int = 0
    # of a chunk the tokens before it; of a decode step those that this request has with the new one
    context: int = 0

    @property
    def seconds(self) -> float:
        return self.end - self.start


@dataclass(kw_only=True)
class Lane(TokenTimes):
    """One request, and its times since the run began."""

    request: int  # its number
    prompt_tokens: int  # of its prompt
    name: str = ""  # what people call it
    reason: str | None = None  # why it ended: "stop", "length", "abort" or "error"

    @property
    def latency(self) -> float | None:
        """Seconds from its arrival to its end; None while it runs, and for one that failed."""
        return None if self.reason in ("abort", "error") else super().latency


@dataclass(frozen=True)
class Trace:
    """One run."""

    title: str  # how it was served
    lanes: Sequence[Lane]  # the requests, in the order of their numbers
    spans: Sequence[Span]  # what they did, in the order in which it ended
    chunk: int  # maximum tokens of a chunk; `WHOLE` means no limit
    prefill_step: int  # prompt tokens agreed between two decode steps; more is a stall
    # how many more chunks of that size were computed, or begun, while running requests waited
    stall_steps: int
    end: float  # seconds, of all of it
    # where it comes from: model, port, device and the like
    provenance: Json = field(default_factory=dict)

    def named(self, name: str) -> Lane:
        """The request with this name."""
        return next(lane for lane in self.lanes if lane.name == name)

    def of(self, lane: Lane) -> list[Span]:
        """The spans of a lane, in order."""
        return [span for span in self.spans if span.request == lane.request]

    @property
    def num_tokens(self) -> int:
        """Number of tokens in all answers."""
        return sum(len(lane.token_times) for lane in self.lanes)

    @property
    def gaps(self) -> list[float]:
        """Seconds between two tokens of a request, for all requests."""
        return [gap for lane in self.lanes for gap in lane.gaps]

    @property
    def longest_gap(self) -> float | None:
        return max(self.gaps, default=None)

    @property
    def tbt_p99(self) -> float | None:
        """P99 of the time between tokens, in seconds."""
        return percentile(self.gaps, 99) if self.gaps else None

    def latencies(self) -> list[str]:
        """TTFT, TBT and speed as texts; unobserved values are left out."""
        texts, ttfts = [], [ttft for lane in self.lanes if (ttft := lane.ttft) is not None]
        for name, seconds in (("TTFT", ttfts), ("TBT", self.gaps)):
            if seconds:
                p50, p99 = (1000 * percentile(seconds, p) for p in (50, 99))
                texts.append(f"{name} p50 {p50:.1f} ms, p99 {p99:.1f} ms")
        if self.num_tokens and self.end:
            texts.append(f"{self.num_tokens / self.end:.1f} tokens/s")
        return texts

    def summary(self) -> Json:
        """Provenance, and figures in ms, as JSON values."""
        return {
            "provenance": self.provenance,
            "chunk": None if self.chunk >= WHOLE else self.chunk,
            "prefill_step": self.prefill_step,
            "stall_steps": self.stall_steps,
            "longest_gap_ms": ms(self.longest_gap),
            "tbt_p99_ms": ms(self.tbt_p99),
            "total_ms": ms(self.end),
        }


def ms(seconds: float | None) -> float | None:
    """Milliseconds, to the microsecond."""
    return None if seconds is None else round(1000 * seconds, 3)


def stalls(tokens: int, prefill_step: int) -> int:
    """Number of chunks, computed or begun, beyond the agreed one, for `tokens` prompt tokens."""
    return max(0, math.ceil(tokens / prefill_step) - 1)
