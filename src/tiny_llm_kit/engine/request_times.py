"""When things happened to one request, and the latencies that follow: TTFT, TBT, TPOT and the whole."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise


@dataclass
class RequestTimes:
    """Times of a request in seconds of one clock; None for what has not happened.

    Args:
        arrival_time: when it arrived, or was sent.
        first_token_time, last_token_time: when its tokens came.
        finished_time: when it ended.
    """

    arrival_time: float
    first_token_time: float | None = None
    last_token_time: float | None = None
    finished_time: float | None = None

    def add_token(self, time: float) -> float | None:
        """Record a token; return the seconds since the one before it, or None for the first."""
        before, self.last_token_time = self.last_token_time, time
        if before is None:
            self.first_token_time = time
            return None
        return time - before

    @property
    def ttft(self) -> float | None:
        """Seconds from its arrival to its first token."""
        return None if self.first_token_time is None else self.first_token_time - self.arrival_time

    @property
    def latency(self) -> float | None:
        """Seconds from its arrival to its end."""
        return None if self.finished_time is None else self.finished_time - self.arrival_time

    def tpot(self, tokens: int) -> float | None:
        """Mean seconds per token after the first of this many; 0 for one token."""
        if self.first_token_time is None or self.last_token_time is None:
            return None
        return (self.last_token_time - self.first_token_time) / max(tokens - 1, 1)


@dataclass
class TokenTimes(RequestTimes):
    """Times of a request with those of all its tokens.

    Args:
        token_times: when each token came.
    """

    token_times: list[float] = field(default_factory=list)

    def add_token(self, time: float) -> float | None:
        self.token_times.append(time)
        return super().add_token(time)

    def add_tokens(self, times: Iterable[float]) -> None:
        """Record several tokens."""
        for time in times:
            self.add_token(time)

    @property
    def gaps(self) -> list[float]:
        """Seconds from each token to the next (TBT); tokens of one step come together, with no gap between them."""
        return [later - earlier for earlier, later in pairwise(self.token_times) if later > earlier]

    @property
    def longest_gap(self) -> float | None:
        """Its longest time between two tokens; None for fewer than two."""
        return max(self.gaps, default=None)
