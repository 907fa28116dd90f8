"""Latencies of calls as tables: speeds beside those of baselines, and shares of what the machine can do at best.

Results of kind "decode", "prefill" and "roofline" are of three earlier commands, and are read as one phase each.
"""

import statistics
from collections.abc import Mapping
from typing import Any, NamedTuple

from rich.table import Table

from tiny_llm_course.trace.text import counted
from tiny_llm_engine.models.config import ModelConfig
from tiny_llm_engine.models.weights.random_weights import shape

from .report import OURS, Report, Speed, Speeds, header, results_table, speeds_table

Result = Mapping[str, Any]
# Phase -> what its cases are, rows × tokens.
SAYS = {
    "decode": "decode: one token for each row, after so many tokens",
    "prefill": "prefill: a prompt of so many tokens, and its next token",
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


def chunks(result: Result) -> dict[int, float]:
    """Seconds of our engine's chunks by their tokens: the median with the best number of threads."""
    found: dict[int, float] = {}
    for case in result["cases"]:
        if result["kind"] == "roofline":
            tokens, samples = case["tokens"], case["seconds"]
        elif case.get("phase") == "chunk":
            tokens, samples = case["context"], case["seconds"][OURS]
        else:
            continue
        found[tokens] = min(statistics.median(samples), found.get(tokens, float("inf")))
    return found


def has_roofline(result: Result) -> bool:
    """Whether it has chunks of several sizes, to be drawn."""
    return result["kind"] in ("latency", "roofline") and len(chunks(result)) > 1


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
    plan, seconds = result["plan"], chunks(result)
    config, itemsize = shape(plan["config"], plan["layers"]), 4 if plan["dtype"] == "float32" else 2
    needed = {tokens: work(config, tokens, itemsize) for tokens in seconds}
    return [Point(n, best, needed[n].intensity, needed[n].operations / best) for n, best in seconds.items()]


def speeds(result: Result) -> Speeds:
    """The speed of every engine in every case of decode and prefill, each with its own best number of threads."""
    cases: dict[tuple[str, int, int], list[Mapping]] = {}
    for case in result["cases"]:
        if (phase := case.get("phase", result["kind"])) in SAYS:
            cases.setdefault((phase, case["rows"], case["context"]), []).append(case)
    return {
        f"{phase} {rows} × {context:,}": {
            name: _speed(result, phase, runs, name) for name in runs[0]["seconds"]
        }
        for (phase, rows, context), runs in cases.items()
    }


def _speed(result: Result, phase: str, runs: list[Mapping], name: str) -> Speed:
    """One engine in one case. Further cells: its threads, and of a decode step the share of the roofline.

    The share: the bytes that a step must read, of what memory delivers in the time that it took.
    """
    best = min(runs, key=lambda run: statistics.median(run["seconds"][name]))
    samples = best["seconds"][name]
    seconds, weights = statistics.median(samples), result["weight_bytes"]
    if phase == "prefill":
        return Speed(best["context"] / seconds, samples, (str(best["threads"]), ""))
    needed = weights.get(name, weights[OURS])  # baselines have our plain ones
    needed += result["kv_bytes_per_token"] * best["context"] * best["rows"]
    share = needed / bandwidth(result) / seconds
    return Speed(best["rows"] / seconds, samples, (str(best["threads"]), f"{share:.0%}"))


def roofline_table(result: Result) -> Table:
    """A table with a row per chunk."""
    limit = roof(result)
    rows = (
        (
            counted(point.tokens, "token"),
            f"{1000 * point.seconds:,.1f}",
            f"{1000 * point.seconds / point.tokens:.2f}",
            f"{point.intensity:,.1f}",
            f"{point.speed / 1e9:.1f}",
            f"{point.speed / limit.at(point.intensity):.0%}",
        )
        for point in points(result)
    )
    return results_table(
        ("a chunk, without the head", "ms", "ms/token", "op/byte", "Gop/s", "of the roof"), rows
    )


def report(result: Result) -> Report:
    """A table of decode steps and prompts, and one of chunks."""
    yield header(result, others=f"memory {bandwidth(result) / 1e9:.1f} GB/s")
    if found := speeds(result):
        yield "\n".join(says for phase, says in SAYS.items() if any(case.startswith(phase) for case in found))
        yield speeds_table(found, "engine", "threads", "of roof")
    if chunks(result):
        limit = roof(result)
        yield f"the fastest large product {limit.operations / 1e9:.0f} Gop/s: ridge point {limit.bend:.1f} op/byte"
        yield roofline_table(result)
