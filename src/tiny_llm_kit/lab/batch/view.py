"""How a running batch shows itself: as a live table on a terminal, else as a line for each thing that happens."""

import time
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from ..text import counted, one_line, shortened
from .board import Board

# Drawing takes time from the engine: at most this share of it, so a slow terminal is drawn on less often.
DRAWING_SHARE = 0.02
SHORTEST_PAUSE, LONGEST_PAUSE = 0.1, 1.0  # seconds between two drawings


class LiveTable:
    """The board, drawn again now and then, on the engine's own thread between two steps.

    Args:
        board: what is drawn. It hears of an event before the table does.
        console: a terminal.
        clock: seconds.
    """

    def __init__(self, board: Board, console: Console, clock: Callable[[], float] = time.perf_counter):
        self._board, self._clock = board, clock
        self._next = clock()
        # Nothing remains of the table: the answers take its place.
        self._live = Live(board, console=console, auto_refresh=False, transient=True)

    def __enter__(self) -> "LiveTable":
        self._live.__enter__()
        return self

    def __call__(self, event: Any) -> None:
        self._board(event)
        start = self._clock()
        if start >= self._next:
            self._live.refresh()
            end = self._clock()
            pause = (end - start) / DRAWING_SHARE
            self._next = end + min(max(pause, SHORTEST_PAUSE), LONGEST_PAUSE)

    def __exit__(self, *exception: Any) -> None:
        self._live.__exit__(*exception)


class Lines:
    """A line when a request starts, and one when it ends.

    Args:
        console: where they are written.
        prompts: what people asked, by the requests' numbers.
    """

    def __init__(self, console: Console, prompts: list[str]):
        self._console, self._prompts = console, prompts

    def __enter__(self) -> "Lines":
        return self

    def __call__(self, event: Any) -> None:
        if event.kind == "prefill":
            number = event.request.prompt_idx
            self._write(f"{number + 1} started: {shortened(self._prompts[number])}")
        elif event.kind == "finish":
            self._write(f"{event.request.prompt_idx + 1} finished: {ending(event.request)}")

    def __exit__(self, *exception: object) -> None:
        self._write("")  # the answers follow

    def _write(self, line: str) -> None:
        self._console.print(Text(line), soft_wrap=True)


def ending(request: Any) -> str:
    """How a request ended, on one line."""
    if request.error is not None:
        return f"error: {one_line(request.error)}"
    return f"{request.finish_reason}, {counted(len(request.tokens), 'token')}: {one_line(request.text)}"
