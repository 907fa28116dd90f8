"""Two runs in a terminal: a lane for each request, on one time axis, and the figures below."""

from collections.abc import Iterable

from rich.console import Console
from rich.text import Text

from ..tables import figures_table
from ..text import counted
from ..trace import Lane, Span, Trace
from .words import Row, duration

COLUMNS = 88
LABEL = 10
LEGEND = (
    ("█▓", "yellow", "a chunk of its prompt, and the next one"),
    ("|", "cyan", "a token"),
    ("-", "dim", "waits for one chunk, as agreed"),
    ("!", "bold red", "stalls: waits for more than that"),
    ("·", "dim", "queued or paused"),
)
CHARACTERS = {"decode": ("|", "cyan"), "waiting": ("-", "dim"), "stall": ("!", "bold red")}
QUEUED = ("·", "dim")
CHUNKS = (("█", "yellow"), ("▓", "yellow"))


def show(console: Console, before: Trace, after: Trace, rows: Iterable[Row]) -> None:
    """Print both charts, then the table."""
    width = max(3 * LABEL, min(COLUMNS, console.width))
    end = max(before.end, after.end)
    for name, trace in (("before", before), ("after", after)):
        _show_run(console, name, trace, end, width)
    for character, style, meaning in LEGEND:
        _line(console, Text.assemble((f"{character:>2}  ", style), meaning))
    console.print()
    table = figures_table("", before.title, after.title, "")
    for row in rows:
        table.add_row(*row)
    console.print(table)


def _show_run(console: Console, name: str, trace: Trace, end: float, width: int) -> None:
    stalls = (counted(trace.stall_steps, "stall step"), "bold red" if trace.stall_steps else "green")
    _line(console, Text.assemble((f"{name}: {trace.title}", "bold"), "   ", stalls))
    for lane in trace.lanes:
        label = f"{lane.name:<4} {lane.prompt_tokens:>5}"
        characters = cells(trace, lane, width - LABEL - 1, end)
        _line(console, Text.assemble((f"{label:<{LABEL}} ", "dim"), *characters))
    _line(console, Text(axis(width, end), style="dim"))
    console.print()


def cells(trace: Trace, lane: Lane, columns: int, end: float) -> list[tuple[str, str]]:
    """A character and its style for each column of a lane."""
    spans, column = trace.of(lane), end / columns
    chunks = [span for span in spans if span.kind == "chunk"]
    parity = {id(span): place % 2 for place, span in enumerate(chunks)}
    return [_cell(spans, parity, i * column, (i + 1) * column) for i in range(columns)]


def _cell(spans: list[Span], parity: dict[int, int], start: float, end: float) -> tuple[str, str]:
    """The character of a column: a stall that fills it, else a token in it, else the longest span."""
    inside = [(min(span.end, end) - max(span.start, start), span) for span in spans]
    inside = [(share, span) for share, span in inside if share > 0]
    if not inside:
        return " ", ""
    share, longest = max(inside, key=lambda pair: pair[0])
    if longest.kind == "stall" and share > (end - start) / 2:
        return CHARACTERS["stall"]
    if any(span.kind == "decode" and span.end <= end for _, span in inside):
        return CHARACTERS["decode"]
    if longest.kind == "chunk":
        return CHUNKS[parity[id(longest)]]
    return CHARACTERS.get(longest.kind, QUEUED)


def axis(width: int, end: float) -> str:
    """The time below the lanes: zero, the middle and the end."""
    left, middle, right = "0", duration(end / 2), duration(end)
    columns = width - LABEL - 1
    half = left + middle.rjust(columns // 2 + len(middle) // 2 - len(left))
    return " " * (LABEL + 1) + half + right.rjust(columns - len(half))


def _line(console: Console, text: Text) -> None:
    text.rstrip()
    console.print(text, soft_wrap=True)
