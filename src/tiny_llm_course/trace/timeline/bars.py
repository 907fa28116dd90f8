"""A run as bars of an SVG: a lane per request, stretched to the page's width.

Names are beside the drawing.
"""

from collections.abc import Iterator
from itertools import cycle
from typing import NamedTuple

from ..trace import Lane, Span, Trace
from .words import described, lane_title

WIDTH, LANE, BAR = 1000, 26, 18  # units across, pixels of a lane and of a bar in it
THIN = ("waiting", "queued", "paused")


class Bar(NamedTuple):
    """One span: its classes in the style sheet, its rectangle, and its text."""

    style: str
    x: float
    y: float
    width: float
    height: int
    text: str


class DrawnLane(NamedTuple):
    """One request: its title, and its bars from left to right."""

    title: str
    bars: list[Bar]


def drawn(trace: Trace, end: float) -> Iterator[DrawnLane]:
    """The lanes of a run, on a time axis that ends at this many seconds."""
    words: dict[int, list[tuple[Span, str]]] = {lane.request: [] for lane in trace.lanes}
    for span, name, details in described(trace):
        words[span.request].append((span, f"{name}: {details}"))
    for place, lane in enumerate(trace.lanes):
        spans = sorted(words[lane.request], key=lambda pair: pair[0].start)
        yield DrawnLane(lane_title(lane), list(_bars(lane, place * LANE, spans, WIDTH / end)))


def _bars(lane: Lane, top: int, spans: list[tuple[Span, str]], scale: float) -> Iterator[Bar]:
    styles = cycle(("chunk", "chunk even"))
    for span, text in spans:
        style = next(styles) if span.kind == "chunk" else span.kind
        height = 4 if span.kind in THIN else BAR
        y = top + (LANE - height) / 2
        yield Bar(style, span.start * scale, y, span.seconds * scale, height, f"{lane.name}, {text}")
