"""Live output on a terminal while requests are served: a redrawn table, and the tail of a growing text."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.live import Live
from rich.measure import Measurement
from rich.table import Column, Table
from rich.text import Text

from tiny_llm_engine.solutions.solution_types import Event

from .text import one_line

if TYPE_CHECKING:
    from typing_extensions import Self

# Drawing takes time from the engine: at most this share of it, so a slow terminal is drawn on less often.
DRAWING_SHARE = 0.02
SHORTEST_PAUSE, LONGEST_PAUSE = 0.1, 1.0  # seconds between two drawings


@dataclass(frozen=True)
class Tail:
    """The tail of a text, as much of it as fits on one line."""

    text: str

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(self.last(options.max_width), no_wrap=True, overflow="crop")

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(1, options.max_width)

    def last(self, width: int) -> str:
        """The end of a text in at most `width` columns; some characters take two."""
        # Characters may have no width, but four times as many as there are columns are more than enough.
        text = one_line(self.text[-4 * width :])
        if cell_len(text) <= width:
            return text
        text = text[-width:]
        while cell_len(text) > width - 1:
            text = text[1:]
        return "…" + text


def board_table(*columns: str | Column) -> Table:
    """A table without lines whose last column, a text, gets what room is left."""
    table = Table(*columns, Column("text", ratio=1), box=None, pad_edge=False, expand=True)
    for column in table.columns:
        column.no_wrap = True
    return table


class LineView:
    """A view that only writes lines."""

    def __init__(self, console: Console):
        self._console = console

    def __enter__(self) -> "Self":
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def write(self, line: str) -> None:
        self._console.print(Text(line), soft_wrap=True)


class Board(Protocol):
    """A listener that rich can draw."""

    def __call__(self, event: Event, /) -> None: ...

    def __rich__(self) -> RenderableType: ...


class LiveTable:
    """A board that is redrawn now and then, on the engine's own thread between two steps.

    Board and `lines` are both listeners; what `lines` writes is above the board.
    """

    def __init__(
        self,
        board: "Board",
        console: Console,
        clock: Callable[[], float] = time.perf_counter,
        lines: Callable[[Event], object] = lambda event: None,
    ):
        self._board, self._clock, self._lines = board, clock, lines
        self._next = clock()
        # The table is cleared: the answers replace it.
        self._live = Live(board, console=console, auto_refresh=False, transient=True)

    def __enter__(self) -> "LiveTable":
        self._live.__enter__()
        return self

    def __call__(self, event: Event) -> None:
        self._lines(event)
        self._board(event)
        start = self._clock()
        if start >= self._next:
            self._live.refresh()
            end = self._clock()
            pause = (end - start) / DRAWING_SHARE
            self._next = end + min(max(pause, SHORTEST_PAUSE), LONGEST_PAUSE)

    def __exit__(self, *exception: object) -> None:
        self._live.stop()
