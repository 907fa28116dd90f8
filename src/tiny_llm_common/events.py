"""Events emitted while requests are served, and their way to the listeners. Given."""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
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
        self._events: deque[Event] = deque()

    def __len__(self) -> int:
        """Number of events that were not delivered."""
        return len(self._events)

    def emit(self, event: Event) -> None:
        """Adds an event."""
        self._events.append(event)

    def deliver(self) -> None:
        """Passes all events on. If a listener raises, the others come with the next call."""
        while self._events:
            event = self._events.popleft()
            for listener in self.listeners:
                listener(event)
