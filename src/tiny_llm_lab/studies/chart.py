"""A study's chart as an SVG, with the book's classes instead of colours."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tiny_llm_course.trace.template import render

LEFT, RIGHT, TOP, BOTTOM = 62, 462, 28, 228
LEGEND = 16  # height of a line
DASHES = ("none", "7 4", "2 3", "10 3 2 3", "1 6")  # of the first curve, the second, and so on


@dataclass(frozen=True)
class Scale:
    """A mapping from low to high to the positions from start to end; logarithmic with `doublings`."""

    low: float
    high: float
    start: float
    end: float
    doublings: bool = False

    def __call__(self, value: float) -> str:
        low, high, value = map(self._share, (self.low, self.high, value))
        return f"{self.start + (value - low) / (high - low) * (self.end - self.start):.1f}"

    def _share(self, value: float) -> float:
        return math.log2(value) if self.doublings else value

    def ticks(self) -> list[float]:
        """About five round values."""
        if self.doublings:
            low, high = math.ceil(math.log2(self.low)), math.floor(math.log2(self.high))
            return [2.0**power for power in range(low, high + 1)]
        step = 10 ** math.floor(math.log10(self.high / 5))
        step = next(step * times for times in (1, 2, 5, 10) if self.high / (step * times) <= 6)
        return [step * number for number in range(math.floor(self.high / step) + 1)]


def drawing(result: Mapping[str, Any]) -> str:
    """An SVG for a `<figure class="diagram">`, from the result of a study that has a chart."""
    chart = result["chart"]
    points = [point for curve in chart["curves"] for point in curve["points"]]
    xs, ys = zip(*points, strict=True)
    return render(
        Path(__file__).with_name("chart.svg.j2"),
        name=f"lab-{result['name']}-title",
        title=result["title"].splitlines()[0],
        chart=chart,
        x=_scale(xs, max(xs), LEFT, RIGHT, chart["log_x"]),
        y=_scale(ys, 1.05 * max(ys), BOTTOM, TOP, chart["log_y"]),
        dashes=DASHES,
        box=(LEFT, RIGHT, TOP, BOTTOM, LEGEND),
    )


def _scale(values: Sequence[float], high: float, start: float, end: float, doublings: bool) -> Scale:
    """The scale of an axis: from the least value if it is logarithmic, else from 0."""
    return Scale(min(values) if doublings else 0, high, start, end, doublings)
