"""Latencies of calls as tables: speeds beside those of baselines, and shares of what the machine can do at best.

Results of kind "decode", "prefill" and "roofline" are of three earlier commands, and are read as one phase each.
"""

import statistics
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from tiny_llm_kit.engine.samples import ratio
from tiny_llm_kit.engine.weights.random_weights import shape
from tiny_llm_kit.model.config import ModelConfig
from tiny_llm_kit.trace.tables import figures_table
from tiny_llm_kit.trace.text import counted

from .report import OURS, medians, model_name, noise, print_header

Result = Mapping[str, Any]
WIDTH = 16  # of a full bar
TITLES = {
    "decode": "Decode: one token per row, after `context` tokens",
    "prefill": "Prefill: a prompt of `context` tokens, and its next token",
    "chunk": "Chunks: tokens of a prompt, without the head",
}


class Work(NamedTuple):
    """The least work of a call: operations, and bytes that it reads."""

    operations: int
    bytes: int

    @property
    def intensity(self) -> float:
        """Operations per byte."""
        return self.operations / self.bytes


class Roof(NamedTuple):
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


class Point(NamedTuple):
    """One call: its tokens, its seconds with its best number of threads, operations per byte and per second."""

    tokens: int
    seconds: float
    intensity: float
    speed: float


class Line(NamedTuple):
    """One engine in one case, with its best number of threads (0 where the port does not say).

    `tokens_per_second` are those of all rows, `spread` is the quartile distance over the median, `ours_is` how many
    times faster our engine was with its own best threads. `roofline` is the share of the read bandwidth that the
    weights and the cache of a decode step need at least.
    """

    rows: int
    context: int
    name: str
    threads: int
    tokens_per_second: float
    spread: str
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


def cases_of(result: Result, phase: str) -> list[Mapping[str, Any]]:
    """The cases of one phase, each with `rows`, `context`, `threads` and `seconds` by engine."""
    if result["kind"] == "roofline":
        return [
            case | {"context": case["tokens"], "seconds": {OURS: case["seconds"]}} for case in result["cases"]
        ]
    return [case for case in result["cases"] if case.get("phase", result["kind"]) == phase]


def has_roofline(result: Result) -> bool:
    """Whether it has chunks of several sizes, to be drawn."""
    return result["kind"] in ("latency", "roofline") and len(points(result)) > 1


def roof(result: Result) -> Roof:
    """The highest limits of all numbers of threads."""
    roofs = result["roofs"].values()
    return Roof(*(max(each[f"{what}_per_second"] for each in roofs) for what in ("bytes", "operations")))


def bandwidth(result: Result) -> float:
    """Bytes per second with the best number of threads."""
    earlier = result.get("read_bandwidth_bytes_per_second")
    return max(earlier.values()) if earlier else roof(result).bytes


def points(result: Result) -> list[Point]:
    """The points of our engine's chunks, by medians."""
    plan, seconds = result["plan"], {}
    config, itemsize = shape(plan["config"], plan["layers"]), 4 if plan["dtype"] == "float32" else 2
    for case in cases_of(result, "chunk"):
        median = statistics.median(case["seconds"][OURS])
        seconds[case["context"]] = min(median, seconds.get(case["context"], median))
    needed = {tokens: work(config, tokens, itemsize) for tokens in seconds}
    return [Point(n, best, needed[n].intensity, needed[n].operations / best) for n, best in seconds.items()]


def lines(result: Result, phase: str) -> Iterator[Line]:
    """The lines of every engine in every case, each with its own best number of threads."""
    cases: dict[tuple[int, int], list[Mapping]] = {}
    for case in cases_of(result, phase):
        cases.setdefault((case["rows"], case["context"]), []).append(case)
    for (rows, context), runs in cases.items():
        ours = _best(runs, OURS)["seconds"][OURS]
        for name in runs[0]["seconds"]:
            best = _best(runs, name)
            samples, tokens = best["seconds"][name], rows if phase == "decode" else context
            speed = tokens / statistics.median(samples)
            ours_is = None if name == OURS else ratio(samples, ours)
            share = _roofline(result, best, name) if phase == "decode" else None
            yield Line(rows, context, name, best["threads"], speed, noise(samples), ours_is, share)


def _best(runs: list[Mapping], name: str) -> Mapping:
    """The run with the number of threads that was fastest for `name`."""
    return min(runs, key=lambda run: statistics.median(run["seconds"][name]))


def _roofline(result: Result, run: Mapping, name: str) -> float:
    """The bytes that a step must read, as a share of what memory delivers in the time that it took."""
    weights = result["weight_bytes"]  # baselines have our plain ones
    needed = weights.get(name, weights[OURS]) + result["kv_bytes_per_token"] * run["context"] * run["rows"]
    return needed / bandwidth(result) / statistics.median(run["seconds"][name])


def speeds(result: Result, phase: str) -> Table:
    """A table with a row per engine and case."""
    columns = ("rows", "context", "engine", "threads", "tokens/s", "spread", "tiny-llm is", "roofline")
    table = Table(*columns, box=None, pad_edge=False)
    for line in lines(result, phase):
        table.add_row(
            *map(str, line[:4]),
            f"{line.tokens_per_second:.1f}",
            line.spread,
            "" if line.ours_is is None else f"{line.ours_is:.2f} ×",
            "" if line.roofline is None else f"{100 * line.roofline:.0f} %",
            style="bold" if line.name == OURS else "",
        )
    return table


def chunks(result: Result) -> Table:
    """A table with a row per chunk."""
    limit = roof(result)
    table = figures_table("tokens/call", "ms", "ms/token", "op/byte", "Gop/s", "of the roof")
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


def show(console: Console, result: Result) -> None:
    """Print what was measured, on what machine, and a table for each phase."""
    plan, earlier = result["plan"], None if result["kind"] == "latency" else result["kind"]
    if earlier == "roofline":
        layers = shape(plan["config"], plan["layers"]).num_hidden_layers
        threads = " and ".join(map(str, plan["threads"]))
        best = f"the better of {threads}" if len(plan["threads"]) > 1 else threads
        what = f"{counted(layers, 'layer')} of {plan['config']}, {plan['dtype']}, random weights"
        how = f"{medians(plan['rounds'])}, threads: {best}"
    else:
        load = result["provenance"]["machine"]["load_before"]
        rounds = f"{counted(plan['rounds'], 'round')}, threads {plan['threads']}, load before {load}"
        what = f"{model_name(plan)}, {plan['dtype']}"
        how = f"{rounds}; memory {bandwidth(result) / 1e9:.1f} GB/s"
    print_header(console, result, what, how)
    for phase in [earlier] if earlier else plan["phase"]:
        console.print("" if earlier else f"\n{TITLES[phase]}")
        if phase in ("chunk", "roofline"):
            limit = roof(result)
            console.print(
                f"memory {limit.bytes / 1e9:.1f} GB/s, the fastest large product {limit.operations / 1e9:.0f} Gop/s: "
                f"ridge point {limit.bend:.1f} op/byte\n"
            )
        console.print(chunks(result) if phase in ("chunk", "roofline") else speeds(result, phase))
