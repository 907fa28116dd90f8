"""A measured roofline as a drawing for the book: the two roofs, and a point for every call."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from html import escape
from typing import Any

from ...lab.bench.roofline_report import Point, Roof, points, roof

WIDTH, HEIGHT = 480, 300
LEFT, RIGHT, TOP, BOTTOM = 62, 462, 36, 248  # where the axes begin and end
LABELLED = (1, 4, 32, 128, 512, 2048)  # tokens; of the other points the place says enough
DECODES = 16  # tokens: a call with no more could be a decode step, one row for each


@dataclass(frozen=True)
class Axes:
    """Logarithmic: operations a byte from `low` in doublings, operations a second from `slow` in decades.

    Args:
        low, high: exponents of 2.
        slow, fast: exponents of 10.
    """

    low: int
    high: int
    slow: int
    fast: int

    def x(self, intensity: float) -> float:
        return LEFT + (math.log2(intensity) - self.low) / (self.high - self.low) * (RIGHT - LEFT)

    def y(self, speed: float) -> float:
        return BOTTOM - (math.log10(speed) - self.slow) / (self.fast - self.slow) * (BOTTOM - TOP)


def drawing(result: Mapping[str, Any]) -> str:
    """An SVG without colours of its own, to be included in a `<figure class="diagram">`."""
    limit, calls, name = roof(result), points(result), f"roofline-{result['backend']}-title"
    axes = _axes(limit, calls)
    parts = [*_grid(axes), *_roofs(axes, limit), *(part for call in calls for part in _point(axes, call))]
    return "\n".join(
        [
            f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-labelledby="{name}">',
            f'<title id="{name}">{escape(_title(limit, calls))}</title>',
            *parts,
            "</svg>\n",
        ]
    )


def _axes(limit: Roof, calls: list[Point]) -> Axes:
    """With room below the slowest call for its label, and without a whole doubling for a hair's breadth."""
    intensities = [math.log2(call.intensity) for call in calls]
    slowest = min(call.speed for call in calls)
    return Axes(
        math.floor(min(intensities) + 0.05),
        math.ceil(max(intensities) - 0.05),
        math.floor(math.log10(slowest / 2)),
        math.ceil(math.log10(limit.operations)),
    )


def _title(limit: Roof, calls: list[Point]) -> str:
    few, many = calls[0], max(calls, key=lambda call: call.speed)
    return (
        f"Measured: the roofs meet at {limit.bend:.1f} operations a byte. A call of {few.tokens} token computes "
        f"{few.speed / 1e9:.1f} billion operations a second, one of {many.tokens:,} tokens {many.speed / 1e9:.0f}"
    )


def _grid(axes: Axes) -> Iterator[str]:
    for power in range(axes.low, axes.high + 1):
        x = axes.x(2.0**power)
        yield f'<path class="grid" d="M{x:.1f} {TOP} V{BOTTOM}"/>'
        if power % 2 == 0:
            yield f'<text class="label small" x="{x:.1f}" y="{BOTTOM + 16}">{2.0**power:,g}</text>'
    for power in range(axes.slow, axes.fast + 1):
        y = axes.y(10.0**power)
        yield f'<path class="grid" d="M{LEFT} {y:.1f} H{RIGHT}"/>'
        yield f'<text class="label-end small" x="{LEFT - 8}" y="{y:.1f}">{10.0 ** (power - 9):,g}</text>'
    yield f'<text class="label-start small" x="{LEFT}" y="{BOTTOM + 38}">operations a byte</text>'
    yield '<text class="label-start small" x="8" y="14">billion operations a second</text>'


def _roofs(axes: Axes, limit: Roof) -> Iterator[str]:
    slow, bend = 10.0**axes.slow, min(max(limit.bend, 2.0**axes.low), 2.0**axes.high)
    start = max(2.0**axes.low, slow / limit.bytes)
    yield (
        f'<path class="line" d="M{axes.x(start):.1f} {axes.y(limit.at(start)):.1f} '
        f'L{axes.x(bend):.1f} {axes.y(limit.at(bend)):.1f} H{RIGHT}"/>'
    )
    x, label = axes.x(bend), f"bend: {limit.bend:.1f}"
    yield f'<path class="dash" d="M{x:.1f} {axes.y(limit.at(bend)):.1f} V{BOTTOM}"/>'
    yield f'<text class="label-start small halo" x="{x + 6:.1f}" y="{BOTTOM - 12}">{label}</text>'


def _point(axes: Axes, call: Point) -> Iterator[str]:
    x, y = axes.x(call.intensity), axes.y(call.speed)
    box = "box-a" if call.tokens <= DECODES else "box-b"
    yield f'<circle class="{box}" cx="{x:.1f}" cy="{y:.1f}" r="6"/>'
    if call.tokens in LABELLED:
        yield f'<text class="label small halo" x="{x:.1f}" y="{y + 17:.1f}">{call.tokens:,}</text>'
