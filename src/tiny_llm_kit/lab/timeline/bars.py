"""A run as bars of an SVG: a lane a request, stretched to whatever width the page has. Names stand beside it."""

from collections.abc import Iterator
from html import escape

from .trace import Lane, Span, Trace
from .words import described, lane_title

WIDTH, LANE, BAR = 1000, 26, 18  # units across, pixels of a lane and of a bar in it
THIN = ("waiting", "queued", "paused")


def chart(trace: Trace, end: float) -> str:
    """The lanes of a run, on a time axis that ends at so many seconds."""
    height = LANE * len(trace.lanes)
    words: dict[int, list[tuple[Span, str]]] = {lane.request: [] for lane in trace.lanes}
    for span, name, details in described(trace):
        words[span.request].append((span, f"{name}: {details}"))
    lanes = "\n".join(
        _lane(lane, place * LANE, sorted(words[lane.request], key=lambda pair: pair[0].start), end)
        for place, lane in enumerate(trace.lanes)
    )
    return (
        f'<svg class="bars" viewBox="0 0 {WIDTH} {height}" height="{height}" preserveAspectRatio="none" role="group" '
        f'aria-label="{escape(trace.title)}">\n{lanes}\n</svg>'
    )


def _lane(lane: Lane, top: int, spans: list[tuple[Span, str]], end: float) -> str:
    bars = "".join(_bars(lane, top, spans, WIDTH / end))
    title = escape(f"{lane_title(lane)}. Arrow keys go through its spans.")
    return f'<g class="lane" tabindex="0" role="img" aria-label="{title}">{bars}</g>'


def _bars(lane: Lane, top: int, spans: list[tuple[Span, str]], scale: float) -> Iterator[str]:
    chunks = 0
    for span, text in spans:
        chunks += span.kind == "chunk"
        style = f"{span.kind} even" if span.kind == "chunk" and chunks % 2 == 0 else span.kind
        height = 4 if span.kind in THIN else BAR
        yield (
            f'<rect class="{style}" x="{span.start * scale:.2f}" y="{top + (LANE - height) / 2:g}" '
            f'width="{span.seconds * scale:.2f}" height="{height}">'
            f"<title>{escape(f'{lane.name}, {text}')}</title></rect>"
        )
