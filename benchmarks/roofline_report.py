"""A measured roofline as a table: what every call reached, and what share of the lower roof that is."""

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from tiny_llm_kit.trace.shapes import shape
from tiny_llm_kit.trace.text import counted

from .origin import origin
from .roofline import work

WIDTH = 16  # of a full bar


@dataclass(frozen=True)
class Roof:
    """Two limits: bytes and operations per second."""

    bytes: float
    operations: float

    @property
    def bend(self) -> float:
        """Operations a byte, from which on arithmetic is the limit."""
        return self.operations / self.bytes

    def at(self, intensity: float) -> float:
        """Operations per second at best, for a call with this many operations per byte."""
        return min(self.operations, self.bytes * intensity)


@dataclass(frozen=True)
class Point:
    """One call: its tokens, its seconds with its best number of threads, operations per byte and a second."""

    tokens: int
    seconds: float
    intensity: float
    speed: float


def roof(result: Mapping[str, Any]) -> Roof:
    """The highest of all numbers of threads."""
    roofs = result["roofs"].values()
    return Roof(*(max(each[f"{what}_per_second"] for each in roofs) for what in ("bytes", "operations")))


def points(result: Mapping[str, Any]) -> list[Point]:
    """One for each number of tokens, by medians."""
    plan = result["plan"]
    config, itemsize = shape(plan["config"], plan["layers"]), 4 if plan["dtype"] == "float32" else 2
    found = []
    for tokens in plan["tokens"]:
        cases = (case for case in result["cases"] if case["tokens"] == tokens)
        seconds = min(statistics.median(case["seconds"]) for case in cases)
        needed = work(config, tokens, itemsize)
        found.append(Point(tokens, seconds, needed.intensity, needed.operations / seconds))
    return found


def table(result: Mapping[str, Any]) -> Table:
    """A row a call."""
    limit = roof(result)
    shown = Table(box=None, pad_edge=False)
    for heading in ("tokens a call", "ms", "ms a token", "op/byte", "Gop/s", "of the roof"):
        shown.add_column(heading, justify="right")
    shown.add_column("")
    for point in points(result):
        share = point.speed / limit.at(point.intensity)
        shown.add_row(
            f"{point.tokens:,}",
            f"{1000 * point.seconds:,.1f}",
            f"{1000 * point.seconds / point.tokens:.2f}",
            f"{point.intensity:,.1f}",
            f"{point.speed / 1e9:.1f}",
            f"{share:.0%}",
            "█" * round(WIDTH * point.speed / limit.operations),
        )
    return shown


def show(console: Console, result: Mapping[str, Any]) -> None:
    """What was measured, on what machine, the roofs and the table."""
    plan, limit = result["plan"], roof(result)
    layers = shape(plan["config"], plan["layers"]).num_hidden_layers
    what = f"{layers} layers of {plan['config']}, {plan['dtype']}, random weights"
    threads = "the better of " * (len(plan["threads"]) > 1) + " and ".join(map(str, plan["threads"]))
    origin(console, result, what, f"medians of {counted(plan['rounds'], 'round')}, threads: {threads}")
    console.print(
        f"\nmemory {limit.bytes / 1e9:.1f} GB/s, the fastest large product {limit.operations / 1e9:.0f} Gop/s: "
        f"the bend is at {limit.bend:.1f} op/byte\n"
    )
    console.print(table(result))
