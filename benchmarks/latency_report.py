"""Latencies of calls as tables: speeds beside those of baselines, and shares of what the machine can do at best.

Results of kind "decode", "prefill" and "roofline" are of three earlier commands, and are read as one phase each.
"""

import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from tiny_llm_kit.model.config import ModelConfig
from tiny_llm_kit.trace.samples import ratio, spread
from tiny_llm_kit.trace.shapes import shape
from tiny_llm_kit.trace.text import counted

from .report import OURS, figures_table, model_name, print_header

WIDTH = 16  # of a full bar
TITLES = {
    "decode": "Decode: one token per row, after `context` tokens",
    "prefill": "Prefill: a prompt of `context` tokens, and its next token",
    "chunk": "Chunks: tokens of a prompt, without the head",
}


@dataclass(frozen=True)
class Work:
    """The least that a call must do: operations, and bytes that it reads."""

    operations: float
    bytes: float

    @property
    def intensity(self) -> float:
        """Operations per byte."""
        return self.operations / self.bytes


@dataclass(frozen=True)
class Roof:
    """The two limits of a machine: bytes and operations per second."""

    bytes: float
    operations: float

    @property
    def bend(self) -> float:
        """Operations per byte from which on arithmetic is the limit."""
        return self.operations / self.bytes

    def at(self, intensity: float) -> float:
        """Operations per second at best, for a call with this many operations per byte."""
        return min(self.operations, self.bytes * intensity)


@dataclass(frozen=True)
class Point:
    """One call: its tokens, its seconds with its best number of threads, operations per byte and per second."""

    tokens: int
    seconds: float
    intensity: float
    speed: float


@dataclass(frozen=True)
class Line:
    """One engine in one case, with its best number of threads.

    Args:
        rows, context: the case.
        name: of the engine.
        threads: how many were best; 0 where the port does not say.
        tokens_per_second: of all rows together.
        spread: quartile distance over median.
        ours_is: how many times faster our engine was, each with its own best threads; None for our own line.
        roofline: share of the read bandwidth that the weights and the cache of a step would need at least; decode only.
    """

    rows: int
    context: int
    name: str
    threads: int
    tokens_per_second: float
    spread: float
    ours_is: float | None
    roofline: float | None


def work(config: ModelConfig, tokens: int, itemsize: int) -> Work:
    """The work of the layers for a call of this many tokens without a past. A product and a sum are two operations."""
    queries = config.num_attention_heads * config.head_dim
    keys = config.num_key_value_heads * config.head_dim
    weights = config.hidden_size * (2 * queries + 2 * keys + 3 * config.intermediate_size)
    pairs = tokens * (tokens + 1) // 2  # of a token and one that it sees: a score, and a share of a value
    return Work(
        config.num_hidden_layers * (2 * tokens * weights + 4 * pairs * queries),
        config.num_hidden_layers * (weights + 2 * tokens * keys) * itemsize,
    )


def cases_of(result: Mapping[str, Any], phase: str) -> list[Mapping[str, Any]]:
    """The cases of one phase, each with `rows`, `context`, `threads` and `seconds` by engine."""
    if result["kind"] == "roofline":
        return [
            {**case, "context": case["tokens"], "seconds": {OURS: case["seconds"]}}
            for case in result["cases"]
        ]
    return [case for case in result["cases"] if case.get("phase", result["kind"]) == phase]


def has_roofline(result: Mapping[str, Any]) -> bool:
    """Whether it has chunks of several sizes, to be drawn."""
    return result["kind"] in ("latency", "roofline") and len(points(result)) > 1


def bandwidth(result: Mapping[str, Any]) -> float:
    """The best of any number of threads is the machine's, in bytes per second."""
    if "read_bandwidth_bytes_per_second" in result:
        return max(result["read_bandwidth_bytes_per_second"].values())
    return roof(result).bytes


def roof(result: Mapping[str, Any]) -> Roof:
    """The highest of all numbers of threads."""
    roofs = result["roofs"].values()
    return Roof(*(max(each[f"{what}_per_second"] for each in roofs) for what in ("bytes", "operations")))


def points(result: Mapping[str, Any]) -> list[Point]:
    """Our engine's chunks, by medians."""
    plan, seconds = result["plan"], {}
    config, itemsize = shape(plan["config"], plan["layers"]), 4 if plan["dtype"] == "float32" else 2
    for case in cases_of(result, "chunk"):
        seconds.setdefault(case["context"], []).append(statistics.median(case["seconds"][OURS]))
    needed = {tokens: work(config, tokens, itemsize) for tokens in seconds}
    best = {tokens: min(found) for tokens, found in seconds.items()}
    return [Point(n, best[n], needed[n].intensity, needed[n].operations / best[n]) for n in best]


def lines(result: Mapping[str, Any], phase: str) -> Iterator[Line]:
    """Every engine of every case; each with its own best number of threads."""
    cases: dict[tuple[int, int], list[Mapping]] = {}
    for case in cases_of(result, phase):
        cases.setdefault((case["rows"], case["context"]), []).append(case)
    for (rows, context), runs in cases.items():
        ours = _best(runs, OURS)["seconds"][OURS]
        for name in runs[0]["seconds"]:
            best = _best(runs, name)
            samples, tokens = best["seconds"][name], rows if phase == "decode" else context
            yield Line(
                rows,
                context,
                name,
                best["threads"],
                tokens / statistics.median(samples),
                spread(samples),
                None if name == OURS else ratio(samples, ours),
                _roofline(result, best, name) if phase == "decode" else None,
            )


def _best(runs: list[Mapping], name: str) -> Mapping:
    """The run with the number of threads that was fastest for `name`."""
    return min(runs, key=lambda run: statistics.median(run["seconds"][name]))


def _roofline(result: Mapping[str, Any], run: Mapping, name: str) -> float:
    """Bytes that a step must read, over what memory delivers in the time that it took."""
    weights = result["weight_bytes"]  # baselines have our plain ones
    needed = weights.get(name, weights[OURS]) + result["kv_bytes_per_token"] * run["context"] * run["rows"]
    return needed / bandwidth(result) / statistics.median(run["seconds"][name])


def speeds(result: Mapping[str, Any], phase: str) -> Table:
    """A row per engine and case."""
    columns = ("rows", "context", "engine", "threads", "tokens/s", "spread", "tiny-llm is", "roofline")
    table = Table(*columns, box=None, pad_edge=False)
    for line in lines(result, phase):
        table.add_row(*_cells(line), style="bold" if line.name == OURS else "")
    return table


def _cells(line: Line) -> list[str]:
    return [
        str(line.rows),
        str(line.context),
        line.name,
        str(line.threads),
        f"{line.tokens_per_second:.1f}",
        f"±{100 * line.spread / 2:.0f} %",
        "" if line.ours_is is None else f"{line.ours_is:.2f} ×",
        "" if line.roofline is None else f"{100 * line.roofline:.0f} %",
    ]


def chunks(result: Mapping[str, Any]) -> Table:
    """A row per chunk."""
    limit, table = (
        roof(result),
        figures_table("tokens a call", "ms", "ms a token", "op/byte", "Gop/s", "of the roof"),
    )
    table.columns[0].justify = "right"
    table.add_column("")
    for point in points(result):
        table.add_row(
            f"{point.tokens:,}",
            f"{1000 * point.seconds:,.1f}",
            f"{1000 * point.seconds / point.tokens:.2f}",
            f"{point.intensity:,.1f}",
            f"{point.speed / 1e9:.1f}",
            f"{point.speed / limit.at(point.intensity):.0%}",
            "█" * round(WIDTH * point.speed / limit.operations),
        )
    return table


def show(console: Console, result: Mapping[str, Any]) -> None:
    """What was measured, on what machine, and a table for each phase."""
    if result["kind"] == "roofline":
        _show_roofline_header(console, result)
        console.print()
        _show_chunks(console, result)
        return
    plan, load = result["plan"], result["provenance"]["machine"]["load_before"]
    rounds = f"{plan['rounds']} rounds, threads {plan['threads']}, load before {load}"
    what = f"{model_name(plan)}, {plan['dtype']}"
    print_header(console, result, what, f"{rounds}; memory {bandwidth(result) / 1e9:.1f} GB/s")
    for phase in plan.get("phase", ()):
        console.print(f"\n{TITLES[phase]}")
        _show_chunks(console, result) if phase == "chunk" else console.print(speeds(result, phase))
    if result["kind"] != "latency":
        console.print()
        console.print(speeds(result, result["kind"]))


def _show_roofline_header(console: Console, result: Mapping[str, Any]) -> None:
    plan = result["plan"]
    layers = shape(plan["config"], plan["layers"]).num_hidden_layers
    what = f"{layers} layers of {plan['config']}, {plan['dtype']}, random weights"
    threads = " and ".join(map(str, plan["threads"]))
    best = f"the better of {threads}" if len(plan["threads"]) > 1 else threads
    print_header(console, result, what, f"medians of {counted(plan['rounds'], 'round')}, threads: {best}")


def _show_chunks(console: Console, result: Mapping[str, Any]) -> None:
    limit = roof(result)
    console.print(
        f"memory {limit.bytes / 1e9:.1f} GB/s, the fastest large product {limit.operations / 1e9:.0f} Gop/s: "
        f"the bend is at {limit.bend:.1f} op/byte\n"
    )
    console.print(chunks(result))
