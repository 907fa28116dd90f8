"""A running batch: as a table of its slots on a terminal, else as a line per event."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console, Group
from rich.table import Column, Table
from rich.text import Text

from tiny_llm_engine.solutions.solution_types import AnswerSequence, Event, Request

from ..live import LineView, Tail, board_table
from ..recorder import number_of
from ..text import counted, one_line, shortened

STYLES = {"prefill": "yellow", "decode": "cyan", "done": "green", "idle": "dim"}
PHASES = {"prefill": "prefill", "token": "decode", "finish": "done"}  # state of a slot after an event


@dataclass
class Slot:
    """One row of the batch: its last request and that request's result."""

    request: Request | AnswerSequence | None = None
    phase: str = "idle"


class SlotBoard:
    """The state of a batch: a listener for scheduler events that draws itself with rich."""

    def __init__(self, requests: Sequence[Request | AnswerSequence], slots: int):
        self.waiting = {number_of(request) for request in requests}
        self.done: set[int] = set()
        self.slots = [Slot() for _ in range(slots)]

    def __call__(self, event: Event) -> None:
        if event.kind not in PHASES:  # a chunk of a prompt, or a step: no slot changes
            return
        index = number_of(event.request)
        self.waiting.discard(index)
        if event.kind == "finish":
            self.done.add(index)
        slot = self._slot(event)
        if slot is not None:
            slot.phase = PHASES[event.kind]

    def _slot(self, event: Event) -> Slot | None:
        """The row of an event's request; during prefill, of the slot that it will get."""
        row = next((slot for slot in self.slots if slot.request is event.request), None)
        if row is None and event.kind == "prefill":
            row = next((slot for slot in self.slots if slot.phase in ("idle", "done")), None)
        if event.slot is not None and row is not self.slots[event.slot]:
            if row is not None:
                row.request, row.phase = None, "idle"
            row = self.slots[event.slot]
        if row is not None:
            row.request = event.request
        return row

    def __rich__(self) -> Group:
        running = sum(slot.phase in ("prefill", "decode") for slot in self.slots)
        counts = f"{len(self.waiting)} waiting · {running} running · {len(self.done)} done"
        return Group(Text(counts, no_wrap=True), self._table())

    def _table(self) -> Table:
        slot, request, tokens = (Column(name, justify="right") for name in ("slot", "request", "tokens"))
        table = board_table(slot, request, Column("phase", min_width=len("prefill")), tokens)
        for number, row in enumerate(self.slots):
            phase, answered = Text(row.phase, STYLES[row.phase]), row.request
            cells = ("", phase, "", Tail(""))
            if answered is not None:
                cells = str(number_of(answered) + 1), phase, str(len(answered.tokens)), Tail(answered.text)
            table.add_row(str(number), *cells)
        return table


class BatchLines(LineView):
    """A listener that prints a line when a request starts, and one when it ends; `prompts` are their texts."""

    def __init__(self, console: Console, prompts: Sequence[str]):
        super().__init__(console)
        self._prompts = prompts

    def __call__(self, event: Event) -> None:
        if event.kind == "prefill":
            number = number_of(event.request)
            self.write(f"{number + 1} started: {shortened(self._prompts[number])}")
        elif event.kind == "finish":
            self.write(f"{number_of(event.request) + 1} finished: {ending(event.request)}")

    def __exit__(self, *exception: object) -> None:
        self.write("")  # the answers follow


def ending(request: Request | AnswerSequence) -> str:
    """How a request ended, on one line."""
    if request.error is not None:
        return f"error: {one_line(request.error)}"
    return f"{request.finish_reason}, {counted(len(request.tokens), 'token')}: {one_line(request.text)}"
