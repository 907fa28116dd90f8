"""Events emitted while requests are served, their way to the listeners, and the latencies of a request. Given."""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any


@dataclass(frozen=True)
class Part:
    """Part of a step of the model: a chunk of one prompt, or one more token for requests that decode.

    Args:
        kind: "chunk" or "decode".
        requests: the requests whose tokens were computed; one for a chunk.
        tokens: number of tokens computed.
        context: of a chunk, the number of prompt tokens before it.
        running: of a chunk, the number of requests that were ready to decode and had to wait for it.
    """

    kind: str
    requests: tuple[Any, ...]
    tokens: int
    context: int = 0
    running: int = 0


@dataclass(frozen=True)
class Event:
    """An event of one request, or of one step of the model.

    Args:
        kind: of a request, "arrive" when it starts to wait, "prefill" before its prompt is computed, "pause" and
            "resume" of its prefill, "preempt" when its blocks are taken away ("resume" follows), "token" after each
            new token, "finish" at its end. Of the model, "step" after each call, before the events of its tokens.
        time: seconds, by the scheduler's clock.
        request: the request; its text and finish reason can be read from it. None for "step".
        slot: the request's slot in the batch; None while it has none.
        start: time at which a "step" began; None for other events.
        parts: what a "step" computed; in a hybrid batch chunks, and then decodes.
    """

    kind: str
    time: float
    request: Any = None
    slot: int | None = None
    start: float | None = None
    parts: tuple[Part, ...] = ()

    @property
    def seconds(self) -> float:
        """Seconds that a step took; 0 for other events."""
        return 0.0 if self.start is None else self.time - self.start

    def seconds_of(self, part: Part) -> float:
        """Seconds of one part: its share of the step's tokens times the step's seconds."""
        return self.seconds * (part.tokens / sum(other.tokens for other in self.parts))


Listener = Callable[[Event], object]


def number_of(request: Any) -> int:
    """The number of an event's request: `prompt_idx` of a `Request`, `request_id` of a `Sequence`."""
    return request.prompt_idx if hasattr(request, "prompt_idx") else request.request_id


class EventQueue:
    """Keeps events until `deliver`, which is called when nothing is half done: a listener may abort any request.

    Args:
        listeners: each is called with every event, in their order.
    """

    def __init__(self, listeners: Iterable[Listener]):
        self.listeners = list(listeners)
        self.pending: deque[Event] = deque()  # that were not delivered

    def emit(self, *events: Event) -> None:
        """Adds events."""
        self.pending.extend(events)

    def deliver(self, *last: Event) -> None:
        """Adds events and passes all on. If a listener raises, the others come with the next call."""
        self.pending.extend(last)
        while self.pending:
            event = self.pending.popleft()
            for listener in self.listeners:
                listener(event)


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


@dataclass
class RequestMetrics(RequestTimes):
    """Times in seconds of the engine's clock; the first token is that of the first answer that had one.

    Args:
        num_preemptions: how often it had to give its blocks away and compute them again.
    """

    num_preemptions: int = 0

    def on_event(self, event: Event) -> None:
        """Records the time of an event of one of its sequences."""
        if event.kind == "token":
            self.add_token(event.time)
        elif event.kind == "finish":
            self.finished_time = event.time
        elif event.kind == "preempt":
            self.num_preemptions += 1
