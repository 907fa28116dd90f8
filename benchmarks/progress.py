"""What a benchmark measures now, and about how long it will still take."""

import sys
import time
from collections.abc import Callable, Iterable, Iterator

from rich.console import Console

EVERY = 10  # seconds between two lines, where there is no terminal


class Progress:
    """A spinner on a terminal; elsewhere a line on standard error now and then. The estimate comes from earlier runs.

    Args:
        console: where the results are printed.
        total: number of runs.
        clock: returns seconds.
    """

    def __init__(self, console: Console, total: int, clock: Callable[[], float] = time.monotonic):
        self._total, self._clock = total, clock
        self._start, self._told, self._done = clock(), -float("inf"), 0
        # Once a second: a spinner that turns faster takes time from what is measured.
        self._status = console.status("", refresh_per_second=1) if console.is_terminal else None

    def __enter__(self) -> "Progress":
        if self._status:
            self._status.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._status:
            self._status.stop()

    def __call__(self, what: str) -> None:
        """Tells what begins now."""
        now = self._clock()
        line = f"run {self._done + 1} of {self._total}: {what}{self._left(now)}"
        self._done += 1
        if self._status:
            self._status.update(line)
        elif now - self._told >= EVERY:
            print(line, file=sys.stderr, flush=True)
            self._told = now

    def over(self, rounds: Iterable[int]) -> Iterator[int]:
        """The rounds, each of them told as it begins."""
        for number in rounds:
            self(f"round {number + 1}")
            yield number

    def _left(self, now: float) -> str:
        """About how long it still takes; nothing before the first run has ended."""
        if not self._done:
            return ""
        seconds = (now - self._start) / self._done * (self._total - self._done)
        return f", about {seconds:.0f} s left" if seconds < 90 else f", about {seconds / 60:.0f} min left"
