"""What happens while requests are served, as a scheduler tells it to whoever listens. Given."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Event:
    """One thing that happened to one request.

    Args:
        kind: "prefill" before a prompt is computed, "token" after each new token, "finish" at the end.
        time: seconds, by the scheduler's clock.
        request: which one; its text, slot and finish reason can be read from it.
        slot: its place in the batch; None while it has none.
    """

    kind: str
    time: float
    request: Any
    slot: int | None = None


Listener = Callable[[Event], object]
