"""The chart of a pipeline in a terminal: a row for each stage, a bar for each micro-batch, and the bubbles between."""

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.text import Text

from .pipeline_run import PipelineRun

# Of a micro-batch with a chunk, two in turns; of decodes alone.
BARS = tuple((sign, colour) for colour in ("yellow", "cyan") for sign in "█▓")
BUBBLE = "bold red"
LABEL, COLUMNS = 9, 70  # of a row, and of the time axis
Bar = tuple[float, float, str, str]  # start, end, character, style


def show_gantt(console: Console, run: PipelineRun, seconds: float | None = None) -> None:
    """Print the stages of a run, and below them the meaning of the signs.

    Args:
        seconds: from the beginning; all of the run when None.
    """
    end = run.end if seconds is None else min(seconds, run.end)
    rows = {f"stage {stage}": cells_of(bars_of(run, stage), end, COLUMNS) for stage in range(len(run.stages))}
    show_rows(console, rows, end, COLUMNS)


def show_rows(
    console: Console, rows: Mapping[str, Sequence[tuple[str, str]]], seconds: float, columns: int
) -> None:
    """Print rows of characters with their styles, each after its name, and below them the time axis."""
    for name, characters in rows.items():
        console.print(Text.assemble(f"{name:<{LABEL}}", *characters, style="dim"), soft_wrap=True)
    axis = "0" + f"{1000 * seconds:.0f} ms".rjust(columns - 1)
    console.print(Text(" " * LABEL + axis, style="dim"), soft_wrap=True)


def legend(console: Console) -> None:
    """Print the meaning of the signs."""
    for sign, style, meaning in (
        ("█▓", "yellow", "a micro-batch with a chunk of a prompt, and the next one"),
        ("█▓", "cyan", "decodes alone"),
        ("1", BUBBLE, "a bubble between chunks of unequal length (PB1)"),
        ("2", BUBBLE, "a bubble between a chunk and decodes (PB2)"),
        ("3", BUBBLE, "a bubble between decodes with unequal contexts (PB3)"),
    ):
        console.print(Text.assemble((f"{sign:>2}  ", style), meaning))


def cells_of(pieces: Sequence[Bar], end: float, columns: int) -> list[tuple[str, str]]:
    """A character and its style for each column of a row: of what fills most of it."""
    width = end / columns
    return [_cell(pieces, place * width, (place + 1) * width) for place in range(columns)]


def bars_of(run: PipelineRun, stage: int) -> list[Bar]:
    """A bar for each micro-batch and for each bubble."""
    signs = [BARS[number % 2 + (0 if work.chunk_tokens else 2)] for number, work in enumerate(run.works)]
    bars = [(span.start, span.end, *sign) for span, sign in zip(run.stages[stage], signs, strict=True)]
    return bars + [(each.start, each.end, each.kind[-1], BUBBLE) for each in run.bubbles(stage)]


def _cell(pieces: Sequence[Bar], start: float, end: float) -> tuple[str, str]:
    inside = [(min(stop, end) - max(begin, start), sign, style) for begin, stop, sign, style in pieces]
    share, sign, style = max(inside, key=lambda piece: piece[0], default=(0.0, " ", ""))
    return (sign, style) if share > 0 else (" ", "")
