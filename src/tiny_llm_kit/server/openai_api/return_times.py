"""When refused clients should come again: one after the other, as answers end."""

import math
import time
from collections import deque
from collections.abc import Callable

from ...solution_types import Event

LATEST = 60  # seconds; OpenAI's clients obey no longer wait
RECENT = 30.0  # seconds: answers that ended before say little about the pace now
UNKNOWN_PACE = 0.1  # seconds per answer, before two have ended
MARGIN = 1.2  # a client that comes too early is refused again, and has one attempt less


class ReturnTimes:
    """A listener of the engine that learns how fast answers end, and gives each refused client its own time.

    Args:
        clock: seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._ends: deque[float] = deque(maxlen=64)
        # Of refused clients: when they return, and how many answers they ask for.
        self._expected: deque[tuple[float, int]] = deque(maxlen=1000)

    def __call__(self, event: Event) -> None:
        if event.kind == "finish":
            self._ends.append(self._clock())

    def refuse(self, answers: int, missing: int) -> int:
        """Seconds after which a refused client should find room.

        Args:
            answers: that it asks for.
            missing: places that it lacks now.
        """
        now = self._clock()
        before = sum(count for end, count in self._expected if end > now)
        wait = math.ceil(MARGIN * self._pace(now) * (before + missing))
        seconds = min(LATEST, max(1, wait))
        self._expected.append((now + seconds, answers))
        return seconds

    def _pace(self, now: float) -> float:
        """Seconds per answer."""
        ends = [end for end in self._ends.copy() if now - end < RECENT]
        return (now - ends[0]) / (len(ends) - 1) if len(ends) > 1 else UNKNOWN_PACE
