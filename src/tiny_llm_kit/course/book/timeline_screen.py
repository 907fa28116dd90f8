"""Two timelines for the book: a drawing, and what a terminal shows. Virtual time, so that every machine agrees."""

from collections.abc import Iterator
from html import escape

from rich.console import Console

from ...lab.timeline.comparison import Comparison
from ...lab.timeline.words import duration
from ...lab.trace import Lane, Span, Trace
from ...lab.workload import among_decodes
from ...runtime.port import resolve_serving

COMMAND = "pdm run timeline --simulate"
WIDTH, LEFT, RIGHT = 480, 58, 472  # of the drawing, and where its time axis begins and ends
LANE, BAR = 26, 18
STRIPES = "week2-07-stripes"
TITLE = "Six requests, one of them long: computed whole it stops the others, computed in chunks it does not"
BOXES = {"chunk": "box-b", "decode": "head"}


def show(console: Console) -> None:
    """What the command prints."""
    Comparison.of(among_decodes(), resolve_serving("ref")).show(console)


def drawing() -> str:
    """An SVG without colours of its own, to be included in a `<figure class="diagram">`."""
    found = Comparison.of(among_decodes(), resolve_serving("ref"))
    runs = [found.before, found.after]
    end, height = max(run.end for run in runs), 56 + LANE * len(runs[0].lanes)
    parts = [part for i, run in enumerate(runs) for part in _run(run, i * height, end)]
    return "\n".join(
        [
            f'<svg viewBox="0 0 {WIDTH} {2 * height}" role="img" aria-labelledby="week2-07-timeline-title">',
            f'<title id="week2-07-timeline-title">{escape(TITLE)}</title>',
            f'<defs><pattern id="{STRIPES}" width="8" height="8" patternUnits="userSpaceOnUse">'
            '<path class="stripe" d="M-2 2 L2 -2 M0 8 L8 0 M6 10 L10 6"/></pattern></defs>',
            *parts,
            "</svg>\n",
        ]
    )


def _run(run: Trace, top: int, end: float) -> Iterator[str]:
    text = f"{run.title}: {run.stall_steps} stalls, longest gap {duration(run.longest_gap)}"
    yield f'<text class="strong label-start" x="8" y="{top + 14}">{escape(text)}</text>'
    for place, lane in enumerate(run.lanes):
        yield from _lane(run, lane, top + 30 + place * LANE, (RIGHT - LEFT) / end)
    bottom = top + 30 + LANE * len(run.lanes)
    yield f'<path class="grid" d="M{LEFT} {bottom} H{RIGHT}"/>'
    yield f'<text class="small label-start" x="{LEFT}" y="{bottom + 12}">0</text>'
    yield f'<text class="small label-end" x="{RIGHT}" y="{bottom + 12}">{duration(end)} of virtual time</text>'


def _lane(run: Trace, lane: Lane, top: float, scale: float) -> Iterator[str]:
    yield f'<text class="label-end" x="{LEFT - 10}" y="{top + LANE / 2:g}">{lane.name}</text>'
    for span in run.of(lane):
        yield _bar(span, top + (LANE - BAR) / 2, LEFT + span.start * scale, span.seconds * scale)


def _bar(span: Span, y: float, x: float, width: float) -> str:
    if span.kind in ("queued", "waiting"):
        style = "dash" if span.kind == "queued" else "line"
        return f'<path class="{style}" d="M{x:.1f} {y + BAR / 2:g} h{width:.1f}"/>'
    if span.kind == "decode":  # with a gap to the next one
        width = max(1.0, width - 1.2)
    style = f'class="stall" fill="url(#{STRIPES})"' if span.kind == "stall" else f'class="{BOXES[span.kind]}"'
    return f'<rect {style} x="{x:.1f}" y="{y:g}" width="{width:.1f}" height="{BAR}"/>'
