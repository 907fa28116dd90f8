"""The demo while it runs: a line for each important event, and on a terminal a live table."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tiny_llm_engine.solutions.solution_types import Event, Request

from ..live import LineView, LiveTable, Tail, board_table
from ..text import counted, one_line, shortened
from ..workload import RequestSpec

PHASES = {"prefill": "prompt", "resume": "prompt", "pause": "paused", "token": "answers", "finish": "done"}
STYLES = {"waits": "dim", "prompt": "yellow", "paused": "magenta", "answers": "cyan", "done": "green"}


class RequestBoard:
    """The state of the requests that were sent: a listener for scheduler events that draws itself with rich."""

    def __init__(self, specs: Sequence[RequestSpec]):
        self._specs = specs
        self._phase = ["waits"] * len(specs)
        self._request: list[Request | None] = [None] * len(specs)

    def __call__(self, event: Event) -> None:
        if event.request is None:
            return
        index: int = event.request.prompt_idx
        self._request[index] = event.request
        self._phase[index] = PHASES.get(event.kind, self._phase[index])

    def __rich__(self) -> Table:
        table = board_table("request", "phase", "prompt", "answer")
        for spec, phase, request in zip(self._specs, self._phase, self._request, strict=True):
            total, cells = spec.tokens, ("0", "0", Tail(""))
            if request is not None:
                total = len(request.prompt_tokens)
                cells = str(min(request.offset, total)), str(len(request.tokens)), Tail(request.text)
            computed, answer, text = cells
            table.add_row(spec.name, Text(phase, STYLES[phase]), f"{computed}/{total}", answer, text)
        return table


class DemoLines(LineView):
    """A listener that prints every first token, pause and end, in seconds since the first arrival."""

    SHOWN = 38  # characters of an answer: after "length, 100 tokens" the line fits into 80

    def __init__(self, console: Console, specs: Sequence[RequestSpec]):
        super().__init__(console)
        self._specs, self._start = specs, None
        self._began: set[int] = set()

    def __call__(self, event: Event) -> None:
        self._start = event.time if self._start is None else self._start
        if event.request is not None and (news := self._news(event)):
            name = self._specs[event.request.prompt_idx].name
            self.write(f"  {event.time - self._start:6.2f} s  {name:<8}  {news}")

    def _news(self, event: Event) -> str | None:
        request = event.request
        if event.kind == "pause":
            return f"makes room at {request.offset} of {len(request.prompt_tokens)} tokens"
        if event.kind == "token" and request.prompt_idx not in self._began:
            self._began.add(request.prompt_idx)
            return "first token"
        if event.kind == "finish":
            what = one_line(request.error) if request.error else shortened(request.text, self.SHOWN)
            return f"{request.finish_reason}, {counted(len(request.tokens), 'token')}: {what}"
        return None


class Pieces(LineView):
    """Streamed texts, printed as a line for every few words.

    The table of a terminal shows each piece at once.
    """

    LENGTH = 40  # characters of a line, at least

    def __init__(self, console: Console, specs: Sequence[RequestSpec]):
        super().__init__(console)
        self._specs = specs
        self._held = [""] * len(specs)

    def __call__(self, index: int, piece: str) -> None:
        self._held[index] += piece
        if len(self._held[index]) >= self.LENGTH:
            self.flush(index)

    def flush(self, index: int) -> None:
        """Print the rest of a text that has ended."""
        if self._held[index]:
            self.write(f"{'':11}{self._specs[index].name:<8}  > {one_line(self._held[index])}")
        self._held[index] = ""


def choose_view(console: Console, specs: Sequence[RequestSpec], moves: bool) -> DemoLines | LiveTable:
    """Choose the view: only lines for a file, a pipe, or a terminal that cannot redraw."""
    lines = DemoLines(console, specs)
    return LiveTable(RequestBoard(specs), console, lines=lines) if moves else lines
