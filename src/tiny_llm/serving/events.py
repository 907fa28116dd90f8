"""What happens while requests are served, as a scheduler tells it to whoever listens. Given."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Event:
    """One thing that happened, to one request or to all that run.

    Args:
        kind: of a request, "arrive" when it starts to wait, "prefill" before a prompt is computed, "chunk" after each
            piece of it, "pause" and "resume" of its prefill, "token" after each new token, "finish" at the end. Of all
            that run, "decode" after a step.
        time: seconds, by the scheduler's clock.
        request: which one; its text, slot and finish reason can be read from it. None for "decode".
        slot: its place in the batch; None while it has none.
        start: when a "chunk" or a "decode" began; None for what takes no time.
        tokens: how many a "chunk" or a "decode" has computed.
        context: of a "chunk", the tokens before it.
        running: of a "chunk", how many requests were ready to decode and waited for it.
    """

    kind: str
    time: float
    request: Any = None
    slot: int | None = None
    start: float | None = None
    tokens: int = 0
    context: int = 0
    running: int = 0

    @property
    def seconds(self) -> float:
        """How long it took."""
        return 0.0 if self.start is None else self.time - self.start


Listener = Callable[[Event], object]
