"""A measured trade-off as a drawing for the book: the longest gap and the end of the long prompt, by chunk size."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.chunked_prefill_report import NONE, milliseconds
from tiny_llm_course.trace.chunk_sweep import median
from tiny_llm_course.trace.template import render

SWEEP = "decode-heavy"
# Figure of the benchmark -> its name in the drawing.
CURVES = {"longest_gap": "longest gap", "ttft_long": "prompt done"}


@dataclass(frozen=True)
class Dot:
    """The figures of one chunk size."""

    tokens: int  # tokens per chunk, or of the whole prompt if it is not cut
    chunk: str  # its name in the benchmark
    seconds: dict[str, float]  # seconds by the name of each curve's figure

    @property
    def label(self) -> str:
        return "whole" if self.chunk == NONE else self.chunk


@dataclass(frozen=True)
class TradeoffAxes:
    """Logarithmic axes: tokens per chunk in doublings, seconds in decades."""

    LEFT, RIGHT, TOP, BOTTOM = 48, 352, 26, 206
    INSET = 22  # of the first and the last size, whose labels are wider than a dot
    few: int  # tokens
    many: int  # tokens
    fast: float  # seconds
    slow: float  # seconds

    def x(self, tokens: float) -> float:
        share = math.log(tokens / self.few) / math.log(self.many / self.few)
        return self.LEFT + self.INSET + share * (self.RIGHT - self.LEFT - 2 * self.INSET)

    def y(self, seconds: float) -> float:
        share = math.log(seconds / self.fast) / math.log(self.slow / self.fast)
        return self.BOTTOM - share * (self.BOTTOM - self.TOP)

    @property
    def ticks(self) -> list[float]:
        """Ticks between the ends: 1, 2 and 5 times the powers of ten."""
        powers = range(math.floor(math.log10(self.fast)), math.ceil(math.log10(self.slow)))
        marks = [factor * 10.0**power for power in powers for factor in (1, 2, 5)]
        return [mark for mark in marks if self.fast <= mark <= self.slow]


def drawing(result: Mapping[str, Any]) -> str:
    """An SVG without colours of its own, to be included in a `<figure class="diagram">`."""
    dots = _dots(result)
    seconds = [value for dot in dots for value in dot.seconds.values()]
    axes = TradeoffAxes(dots[0].tokens, dots[-1].tokens, min(seconds) / 2, max(seconds) * 2)
    return render(
        Path(__file__).with_name("tradeoff.svg.j2"),
        backend=result["backend"],
        title=_title(dots),
        axes=axes,
        dots=dots,
        curves=CURVES,
        milliseconds=milliseconds,
    )


def _dots(result: Mapping[str, Any]) -> list[Dot]:
    """Medians of the rounds, the smallest chunk first."""
    (sweep,) = (one for one in result["sweeps"] if one["name"] == SWEEP)
    whole = result["plan"]["long_tokens"]
    dots = [
        Dot(
            whole if name == NONE else int(name),
            name,
            {figure: median(runs, figure) or math.nan for figure in CURVES},
        )
        for name, runs in sweep["runs"].items()
        if name == NONE or name.isdigit()  # the adaptive chunker has no single size
    ]
    return sorted(dots, key=lambda dot: dot.tokens)


def _title(dots: list[Dot]) -> str:
    ends = " and ".join(
        f"{CURVES[figure]} {milliseconds(dots[0].seconds[figure])} to {milliseconds(dots[-1].seconds[figure])} ms"
        for figure in CURVES
    )
    return f"Measured, from chunks of {dots[0].label} to the whole prompt: {ends}"
