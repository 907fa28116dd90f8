"""Events emitted while requests are served. Given."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Part:
    """Part of a step of the model: a chunk of one prompt, or one more token for requests that decode.

    Args:
        kind: "chunk" or "decode".
        requests: whose tokens were computed; one request for a chunk.
        tokens: how many were computed.
        context: of a chunk, the tokens of its prompt before it.
        running: of a chunk, how many requests were ready to decode and had to wait for it.
    """

    kind: str
    requests: tuple[Any, ...]
    tokens: int
    context: int = 0
    running: int = 0


@dataclass(frozen=True)
class Event:
    """One thing that happened, to one request or in one step of the model.

    Args:
        kind: of a request, "arrive" when it starts to wait, "prefill" before its prompt is computed, "pause" and
            "resume" of its prefill, "preempt" when its blocks are taken away ("resume" follows), "token" after each
            new token, "finish" at its end. Of the model, "step" after each call, before the tokens that came of it.
        time: seconds, by the scheduler's clock.
        request: which one; its text, slot and finish reason can be read from it. None for "step".
        slot: its place in the batch; None while it has none.
        start: when a "step" began; None for what takes no time.
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
        """How long it took."""
        return 0.0 if self.start is None else self.time - self.start

    def seconds_of(self, part: Part) -> float:
        """A part's share of the time, by its tokens."""
        return self.seconds * (part.tokens / sum(other.tokens for other in self.parts))


Listener = Callable[[Event], object]
