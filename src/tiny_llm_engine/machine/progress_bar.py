"""The progress bars of `LLM` on a terminal: one while it warms up, one while it generates."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from ..engine_request import EngineRequest

PAUSE = 0.1  # seconds between two looks at the requests


class GenerationBar:
    """A bar of finished requests and tokens per second, drawn only if standard error is a terminal.

    Args:
        requests: all of them.
    """

    def __init__(self, requests: Sequence[EngineRequest]):
        console = Console(stderr=True)
        self._requests, self._start, self._next = requests, time.perf_counter(), 0.0
        columns = (TextColumn("prompts"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._progress = Progress(
            *columns,
            TextColumn("{task.fields[rate]}"),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task("", total=len(requests), rate="")

    def __enter__(self) -> "GenerationBar":
        self._progress.start()
        return self

    def __call__(self) -> None:
        """Update the bar after a step."""
        now = time.perf_counter()
        if not self._progress.disable and now >= self._next:
            self._next = now + PAUSE
            self._show(now)

    def _show(self, now: float) -> None:
        ended = sum(request.is_done for request in self._requests)
        rate = sum(request.num_tokens for request in self._requests) / (now - self._start)
        self._progress.update(self._task, completed=ended, rate=f"{rate:.1f} tokens/s")

    def __exit__(self, *exception: object) -> None:
        self._show(time.perf_counter())
        self._progress.stop()


@contextmanager
def warm_up_bar() -> Iterator[Callable[[int, int], None]]:
    """A bar for `PackedRunner.warm_up` that yields its `on_progress`, drawn only on a terminal."""
    console = Console(stderr=True)
    columns = (TextColumn("warm-up"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
        task = progress.add_task("", total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)
