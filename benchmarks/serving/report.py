"""Results of `bench-serve` as tables: a row per server and rate, and the capacities."""

import math
import statistics
from collections import Counter
from collections.abc import Mapping
from typing import Any

from rich.table import Table

from tiny_llm_course.trace.text import counted

from ..report import SEVERAL_TOKENS, Report, header, median, results_table

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


def report(result: Mapping[str, Any]) -> Report:
    """What was sent, from where, and what came back."""
    plan = result["plan"]
    arrivals = "Poisson" if plan["burstiness"] == 1 else f"burstiness {plan['burstiness']:g}"
    drafts = f"\n{SEVERAL_TOKENS}" if plan.get("speculative_config") else ""
    yield header(result)
    yield f"{result['dataset']}; arrivals: {arrivals}; the clients share the machine{drafts}"
    yield latencies(result)
    if plan["goodput"]:
        yield f"target: {', '.join(plan['goodput'])} (milliseconds)"
        yield goodput(result)
    if lines := remarks(result):
        yield "\n".join(lines)


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
    rows = (
        (name, f"{rate:g}", *(median(runs, key, digits) for _, key, digits in chosen))
        for name, rate, runs in by_rate(result)
    )
    return results_table(("server, ms", "rate", *(heading for heading, *_ in chosen)), rows)


def goodput(result: Mapping[str, Any]) -> Table:
    """The share that meets the target, how many per second, and up to which rate."""
    capacity = {name: f"{statistics.median(found):.2f}" for name, found in result["capacity"].items()}
    rows = (
        (
            name,
            f"{rate:g}",
            f"{statistics.median(run['attainment'] for run in runs):.0%}",
            median(runs, "request_goodput", 2),
            capacity.get(name, "–"),
        )
        for name, rate, runs in by_rate(result)
    )
    return results_table(("server", "rate", "meet the target", "requests/s that do", "capacity"), rows)


def remarks(result: Mapping[str, Any]) -> list[str]:
    """Lines on a load that was too small, on clients that were too slow, and on each kind of failure."""
    found, plan = [], result["plan"]
    if any(math.isinf(statistics.median(rates)) for rates in result["capacity"].values()):
        found.append("inf: all requests at once meet the target; give more --num-prompts")
    late = max(run["send_delay_p99_ms"] for runs in result["runs"].values() for run in runs)
    if late > LATE and not plan["max_concurrency"]:
        found.append(f"one request in a hundred was sent {late:.0f} ms late: the clients were busy, too")
    for name, runs in result["runs"].items():
        errors = sum((Counter(run["errors"]) for run in runs), Counter[str]())
        found += [f"{name}: {counted(number, 'request')}: {error}" for error, number in errors.items()]
    return found
