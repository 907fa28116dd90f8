"""Results of `bench-serve` as tables: a row per server and rate, and the capacities."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from tiny_llm_kit.trace.tables import figures_table
from tiny_llm_kit.trace.text import counted

from ..report import OURS, SEVERAL_TOKENS, model_name, print_header

COLUMNS = (
    ("tokens/s", "output_throughput", 1),
    ("TTFT p50", "ttft_p50_ms", 0),
    ("p99", "ttft_p99_ms", 0),
    ("TBT p50", "tbt_p50_ms", 1),
    ("p99", "tbt_p99_ms", 0),
    ("gap", "longest_gap_ms", 0),
)
PER_TOKEN = ("TPOT p50", "tpot_p50_ms", 1)
METRICS = {"ttft": "ttft", "tpot": "tpot", "itl": "tbt", "e2el": "e2el"}  # vLLM's names, and ours
LATE = 10.0  # milliseconds: a client that sends later than this measures itself


def show(console: Console, result: Mapping[str, Any]) -> None:
    """Print what was sent, from where, and what came back."""
    plan, machine = result["plan"], result["provenance"]["machine"]
    how = f"{counted(plan['rounds'], 'round')}, load before {machine['load_before']}"
    print_header(console, result, ", ".join(filter(None, (model_name(plan), plan["dtype"]))), how)
    arrivals = "Poisson" if plan["burstiness"] == 1 else f"burstiness {plan['burstiness']:g}"
    console.print(f"\n{result['dataset']}; arrivals: {arrivals}; the clients share the machine")
    if plan.get("speculative_config"):
        console.print(SEVERAL_TOKENS)
    console.print(latencies(result))
    if plan["goodput"]:
        console.print(f"\ntarget: {', '.join(plan['goodput'])} (milliseconds)")
        console.print(goodput(result))
    if any(math.isinf(limit(found)) for found in result["capacity"].values()):
        console.print("inf: all requests at once meet the target; give more --num-prompts", soft_wrap=True)
    late = max(run["send_delay_p99_ms"] for runs in result["runs"].values() for run in runs)
    if late > LATE and not plan["max_concurrency"]:
        console.print(f"one request in a hundred was sent {late:.0f} ms late: the clients were busy, too")
    for line in failures(result):
        console.print(line, soft_wrap=True)


def columns(plan: Mapping[str, Any]) -> list[tuple[str, str, int]]:
    """The figures of a table: heading, key and digits; plans of older results cannot choose."""
    metrics, percentiles = plan.get("percentile_metrics"), plan.get("metric_percentiles")
    if not metrics and not percentiles:
        return [*COLUMNS[:3], PER_TOKEN, *COLUMNS[3:]] if plan.get("speculative_config") else [*COLUMNS]
    chosen = [(name, p) for name in metrics or ("ttft", "tpot", "itl") for p in percentiles or (99,)]
    return [COLUMNS[0], *((f"{name.upper()} p{p:g}", f"{METRICS[name]}_p{p:g}_ms", 1) for name, p in chosen)]


def by_rate(result: Mapping[str, Any]) -> list[tuple[str, float, list[Mapping[str, Any]]]]:
    """The runs of each server at each rate, in the order in which rates were asked for."""
    return [
        (name, rate, [run for run in runs if run["rate"] == rate])
        for rate in dict.fromkeys(result["plan"]["request_rate"])
        for name, runs in result["runs"].items()
    ]


def latencies(result: Mapping[str, Any]) -> Table:
    """A table of medians of the rounds; latencies in milliseconds."""
    chosen = columns(result["plan"])
    shown = figures_table("server, ms", "rate", *(heading for heading, _, _ in chosen))
    for name, rate, runs in by_rate(result):
        cells = [median(runs, key, digits) for _, key, digits in chosen]
        shown.add_row(name, f"{rate:g}", *cells, style="bold" if name == OURS else "")
    return shown


def goodput(result: Mapping[str, Any]) -> Table:
    """The share that meets the target, how many per second, and up to which rate."""
    shown = figures_table("server", "rate", "meet the target", "requests/s that do", "capacity")
    for name, rate, runs in by_rate(result):
        found = result["capacity"].get(name)
        most = f"{limit(found):.2f}" if found else "–"
        met = statistics.median(run["attainment"] for run in runs)
        shown.add_row(name, f"{rate:g}", f"{met:.0%}", median(runs, "request_goodput", 2), most)
    return shown


def limit(found: Sequence[float]) -> float:
    """The capacity over all rounds, in requests per second."""
    return statistics.median(found)


def median(runs: list[Mapping[str, Any]], key: str, digits: int) -> str:
    """The median of one figure; a dash where no run has it."""
    values = [run[key] for run in runs if run[key] is not None]
    return f"{statistics.median(values):,.{digits}f}" if values else "–"


def failures(result: Mapping[str, Any]) -> list[str]:
    """A line for each kind of failure of each server."""
    found: dict[tuple[str, str], int] = {}
    for name, runs in result["runs"].items():
        for run in runs:
            for error, count in run["errors"].items():
                found[name, error] = found.get((name, error), 0) + count
    return [f"{name}: {counted(count, 'request')}: {error}" for (name, error), count in found.items()]
