"""A study of the lab: a table with the paper's figures beside ours, what differs, and perhaps a chart."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text


@dataclass(frozen=True)
class Curve:
    """A line of a chart, through points (x, y) in the order of x."""

    name: str
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Chart:
    """Curves over one axis; `x` and `y` say what the axes are, with units."""

    x: str
    y: str
    curves: Sequence[Curve]
    log_x: bool = False
    log_y: bool = False


@dataclass(frozen=True)
class Study:
    """The result of a study."""

    name: str  # as the command calls it
    title: str  # in a line; another one says what ran
    columns: Sequence[str]  # headings; those of the paper's figures begin with "paper"
    rows: Sequence[Sequence[Any]]  # texts and numbers; None is a figure that was not published
    differs: Sequence[str] = ()  # what is not as in the paper, a sentence each
    chart: Chart | None = None  # what there is to draw

    def result(self, options: Mapping[str, Any], provenance: Mapping[str, Any]) -> dict[str, Any]:
        """The study as a JSON object."""
        return {"kind": "lab", "plan": dict(options), "provenance": dict(provenance), **asdict(self)}


def show(console: Console, result: Mapping[str, Any]) -> None:
    """Print the table of a study, from its result."""
    title, *with_what = result["title"].splitlines()
    console.print(Text(title, style="bold"))
    for line in with_what:
        console.print(Text(line))
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    columns = [_texts(column) for column in zip(*result["rows"], strict=True)]
    for heading, column in zip(result["columns"], zip(*result["rows"], strict=True), strict=True):
        is_text, is_papers = any(isinstance(value, str) for value in column), heading.startswith("paper")
        table.add_column(heading, justify="left" if is_text else "right", style="dim" if is_papers else "")
    for row in zip(*columns, strict=True):
        table.add_row(*row)
    console.print(table)
    for sentence in result["differs"]:
        console.print(Text(sentence, style="dim"))


def _texts(column: Sequence[Any]) -> list[str]:
    """The values of a column as texts: fractions with two decimals, or three when all are small."""
    largest = max((abs(value) for value in column if isinstance(value, float)), default=1.0)
    decimals = 0 if largest >= 1000 else min(3, max(2, 2 - math.floor(math.log10(largest or 1.0))))
    return [_text(value, decimals) for value in column]


def _text(value: Any, decimals: int) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:,.{decimals}f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
