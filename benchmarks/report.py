"""A benchmark's figures as rows of a table: medians, quotients of medians, shares of the roofline."""

import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from tiny_llm_kit.trace.samples import ratio, spread

from .contest import OURS
from .origin import origin


@dataclass(frozen=True)
class Line:
    """One contestant in one case, with the number of threads that served it best.

    Args:
        rows, context: the case.
        name: of the contestant.
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


def lines(result: Mapping[str, Any]) -> Iterator[Line]:
    """Every contestant of every case; each with its own best number of threads."""
    cases: dict[tuple[int, int], list[dict]] = {}
    for case in result["cases"]:
        cases.setdefault((case["rows"], case["context"]), []).append(case)
    for (rows, context), runs in cases.items():
        ours = _best(runs, OURS)
        for name in runs[0]["seconds"]:
            best = _best(runs, name)
            samples, mine = best["seconds"][name], ours["seconds"][OURS]
            tokens = rows if result["kind"] == "decode" else context
            yield Line(
                rows=rows,
                context=context,
                name=name,
                threads=best["threads"],
                tokens_per_second=tokens / statistics.median(samples),
                spread=spread(samples),
                ours_is=None if name == OURS else ratio(samples, mine),
                roofline=_roofline(result, best, name) if result["kind"] == "decode" else None,
            )


def _best(runs: list[dict], name: str) -> dict:
    """The run with the number of threads that was fastest for `name`."""
    return min(runs, key=lambda run: statistics.median(run["seconds"][name]))


def _roofline(result: Mapping[str, Any], run: dict, name: str) -> float:
    """Bytes that a step must read, over what memory delivers in the time that it took."""
    weights = result["weight_bytes"]  # peers have our plain ones
    needed = weights.get(name, weights[OURS]) + result["kv_bytes_per_token"] * run["context"] * run["rows"]
    # The best bandwidth of any number of threads is the machine's.
    bandwidth = max(result["read_bandwidth_bytes_per_second"].values())
    return needed / bandwidth / statistics.median(run["seconds"][name])


def table(result: Mapping[str, Any]) -> Table:
    """The lines for a terminal."""
    columns = ("rows", "context", "engine", "threads", "tokens/s", "spread", "tiny-llm is", "roofline")
    shown = Table(*columns, box=None, pad_edge=False)
    for line in lines(result):
        shown.add_row(*cells(line), style="bold" if line.name == OURS else "")
    return shown


def cells(line: Line) -> list[str]:
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


def show(console: Console, result: Mapping[str, Any]) -> None:
    """What was measured, on what machine, and the table."""
    plan, machine = result["plan"], result["provenance"]["machine"]
    bandwidth = max(result["read_bandwidth_bytes_per_second"].values())
    layers = f", {plan['layers']} layers" if plan["layers"] else ""
    rounds = f"{plan['rounds']} rounds, threads {plan['threads']}, load before {machine['load_before']}"
    how = f"{rounds}; memory {bandwidth / 1e9:.1f} GB/s"
    origin(console, result, f"{plan['config']}{layers}, random weights, {plan['dtype']}", how)
    console.print()
    console.print(table(result))
