"""What runs in which slot of a batch: kept from the events of a scheduler, drawn as a table."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from ..text import one_line

STYLES = {"prefill": "yellow", "decode": "cyan", "done": "green", "idle": "dim"}
PHASES = {"prefill": "prefill", "token": "decode", "finish": "done"}  # what an event makes of a slot


@dataclass(frozen=True)
class Tail:
    """The end of a text on one line, as much of it as there is room for."""

    text: str

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(self.last(options.max_width), no_wrap=True, overflow="crop")

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(1, options.max_width)

    def last(self, width: int) -> str:
        """At most `width` columns of a terminal; some characters take two."""
        # Every character may be of no width at all, but four times as many as columns are more than enough.
        text = one_line(self.text[-4 * width :])
        if cell_len(text) <= width:
            return text
        text = text[-width:]
        while cell_len(text) > width - 1:
            text = text[1:]
        return "…" + text


@dataclass
class Slot:
    """One row of the batch: its last request, and what became of it."""

    request: Any = None
    phase: str = "idle"


class Board:
    """The state of a batch, for people to look at. A listener for a scheduler's events; draws itself with rich.

    Args:
        requests: all of them, in the order of the prompts.
        slots: how many run at a time.
    """

    def __init__(self, requests: Sequence[Any], slots: int):
        self.waiting = {request.prompt_idx for request in requests}
        self.done: set[int] = set()
        self.slots = [Slot() for _ in range(slots)]

    def __call__(self, event: Any) -> None:
        if event.kind not in PHASES:  # a chunk of a prompt, or a step: no slot changes
            return
        index = event.request.prompt_idx
        self.waiting.discard(index)
        if event.kind == "finish":
            self.done.add(index)
        slot = self._slot(event)
        if slot is not None:
            slot.phase = PHASES[event.kind]

    def _slot(self, event: Any) -> Slot | None:
        """Where the request of the event stands. During prefill it has no slot yet: it is shown where it will go."""
        mine = next((slot for slot in self.slots if slot.request is event.request), None)
        if mine is None and event.kind == "prefill":
            mine = next((slot for slot in self.slots if slot.phase in ("idle", "done")), None)
        if event.slot is not None and mine is not self.slots[event.slot]:
            if mine is not None:
                mine.request, mine.phase = None, "idle"
            mine = self.slots[event.slot]
        if mine is not None:
            mine.request = event.request
        return mine

    def __rich__(self) -> Group:
        running = sum(slot.phase in ("prefill", "decode") for slot in self.slots)
        counts = f"{len(self.waiting)} waiting · {running} running · {len(self.done)} done"
        return Group(Text(counts, no_wrap=True), self._table())

    def _table(self) -> Table:
        table = Table(box=None, pad_edge=False, expand=True)
        table.add_column("slot", justify="right", no_wrap=True)
        table.add_column("request", justify="right", no_wrap=True)
        table.add_column("phase", min_width=len("prefill"), no_wrap=True)
        table.add_column("tokens", justify="right", no_wrap=True)
        table.add_column("text", ratio=1, no_wrap=True)
        for number, slot in enumerate(self.slots):
            table.add_row(str(number), *self._cells(slot))
        return table

    @staticmethod
    def _cells(slot: Slot) -> tuple:
        phase = Text(slot.phase, STYLES[slot.phase])
        if slot.request is None:
            return "", phase, "", Tail("")
        request = slot.request
        return str(request.prompt_idx + 1), phase, str(len(request.tokens)), Tail(request.text)
