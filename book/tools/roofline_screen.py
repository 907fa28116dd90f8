"""A measured roofline as a drawing for the book: the two roofs, and a point for every call."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.latency_report import Point, Roof, points, roof
from tiny_llm_course.trace.template import render

LABELLED = (1, 4, 32, 128, 512, 2048)  # tokens; the other points need no label
DECODES = 16  # tokens: a call of at most this many could be a decode step, one row per request


@dataclass(frozen=True)
class Axes:
    """Logarithmic axes: operations per byte in doublings, operations per second in decades."""

    LEFT, RIGHT, TOP, BOTTOM = 62, 462, 36, 248  # where the axes begin and end
    low: int  # exponents of 2
    high: int  # exponents of 2
    slow: int  # exponents of 10
    fast: int  # exponents of 10

    def x(self, intensity: float) -> float:
        share = (math.log2(intensity) - self.low) / (self.high - self.low)
        return self.LEFT + share * (self.RIGHT - self.LEFT)

    def y(self, speed: float) -> float:
        share = (math.log10(speed) - self.slow) / (self.fast - self.slow)
        return self.BOTTOM - share * (self.BOTTOM - self.TOP)


def drawing(result: Mapping[str, Any]) -> str:
    """An SVG without colours of its own, to be included in a `<figure class="diagram">`."""
    limit, calls = roof(result), points(result)
    axes = _axes(limit, calls)
    return render(
        Path(__file__).with_name("roofline.svg.j2"),
        labelled=LABELLED,
        decodes=DECODES,
        backend=result["backend"],
        title=_title(limit, calls),
        axes=axes,
        limit=limit,
        calls=calls,
        bend=min(max(limit.bend, 2.0**axes.low), 2.0**axes.high),
        start=max(2.0**axes.low, 10.0**axes.slow / limit.bytes),
    )


def _axes(limit: Roof, calls: list[Point]) -> Axes:
    """Limits of the axes, with room for the label of the slowest call."""
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
        f"Measured: the roofs meet at {limit.bend:.1f} operations per byte. A call of {few.tokens} token computes "
        f"{few.speed / 1e9:.1f} billion operations per second, one of {many.tokens:,} tokens {many.speed / 1e9:.0f}"
    )
