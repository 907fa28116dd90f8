"""Chunked prefill as tables: medians compared with those of whole prompts, and its targets."""

import statistics
from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from tiny_llm_course.trace.chunk_sweep import NEAR, median, percent, samples
from tiny_llm_engine.backends.samples import ratio

from .report import Report, header, medians, noise, results_table, targets

NONE, PROMISED = "none", "128"
# Figure -> heading. All are seconds, and less is better.
SECONDS = {
    "ttft_long": "TTFT\nlong",
    "ttft_short": "TTFT\nshort",
    "tbt_p50": "TBT\np50",
    "tbt_p99": "TBT\np99",
    "longest_gap": "longest\ngap",
    "total": "total\ntime",
}
# Of a prompt that arrives while others decode.
ARRIVALS = (
    "Its arrival is counted in calls of Week 2's model, some of which compute prompts, and in\n"
    "decode steps of Week 3's engine: there it comes a few decode steps later."
)


def times_lower(sweep: Mapping[str, Any], figure: str, name: str, baseline: str = NONE) -> float:
    """The factor by which a figure is lower than the baseline's: the quotient of the medians."""
    return ratio(samples(sweep["runs"][baseline], figure), samples(sweep["runs"][name], figure))


def milliseconds(seconds: float | None) -> str:
    """Seconds as milliseconds, with a decimal below 100; a dash for None."""
    if seconds is None:
        return "-"
    return f"{1000 * seconds:.1f}" if seconds < 0.1 else f"{1000 * seconds:,.0f}"


def change(mine: float | None, baseline: float | None) -> Text:
    """A change in percent, as "−88 %": green is better, red is worse."""
    if mine is None or baseline is None:
        return Text("-", "dim")
    share = mine / baseline - 1
    style = "" if abs(share) < NEAR else "green" if share < 0 else "red"
    return Text(percent(share), style)


def sweep_table(case: Mapping[str, Any], first: str, baseline: str) -> Table:
    """A row of milliseconds for each candidate; below those of the others, what they are beside the baseline."""
    rows: list[tuple[str | Text, ...]] = []
    base = {figure: median(case["runs"][baseline], figure) for figure in SECONDS}
    for name, runs in case["runs"].items():
        mine = {figure: median(runs, figure) for figure in SECONDS}
        stalls = statistics.median_low(samples(runs, "stall_steps"))
        gaps = noise(samples(runs, "longest_gap"))
        rows.append((Text(name, "bold"), *map(milliseconds, mine.values()), str(stalls), gaps))
        if name != baseline:
            rows.append(("", *(change(mine[figure], base[figure]) for figure in SECONDS)))
    return results_table((first, *SECONDS.values(), "stall\nsteps", "spread\nof gap"), rows)


def sweep_targets(sweep: Mapping[str, Any]) -> Iterator[tuple[str, bool]]:
    """Targets of one workload: gaps at a chunk of 128, where decodes wait for a long prompt, and the best total."""
    if PROMISED in sweep["runs"] and sweep["name"] == "decode-heavy":
        for figure, words in (("longest_gap", "longest gap"), ("tbt_p99", "TBT p99")):
            factor = times_lower(sweep, figure, PROMISED)
            yield f"{words} at chunk {PROMISED} at least 5 × lower: {factor:.1f} ×", factor >= 5
    chunked = [name for name in sweep["runs"] if name != NONE]
    if chunked:
        best = max(chunked, key=lambda name: times_lower(sweep, "total", name))
        lost = 1 / times_lower(sweep, "total", best) - 1
        text = f"total time at the best chunk at most 10 % longer: {percent(lost)} at chunk {best}"
        yield text, lost <= 0.10


def policy_targets(case: Mapping[str, Any]) -> Iterator[tuple[str, bool]]:
    """The target for the first token of short prompts: with pausing, compared with the same chunks in order."""
    wanted = {"queued": 20, "arriving": 7}[case["name"]]
    unchunked, in_order, pausing = case["runs"]
    factor = times_lower(case, "ttft_short", pausing, in_order)

    def sooner(place: int) -> float:  # the short prompt at that place, of the sorted ones
        times = {name: [run["ttft_short"][place] for run in runs] for name, runs in case["runs"].items()}
        return ratio(times[in_order], times[pausing])

    than_none = times_lower(case, "ttft_short", pausing, unchunked)
    text = (
        f"short prompts' first token with pausing at least {wanted} × sooner than in order:\n        {factor:.1f} × "
        f"(the first of them {sooner(0):.0f} ×, the last {sooner(-1):.0f} ×); than unchunked {than_none:.1f} ×"
    )
    yield text, factor >= wanted


def report(result: Mapping[str, Any]) -> Report:
    """The tables of every workload, and its targets."""
    plan = result["plan"]
    yield header(result)
    yield (
        f"Milliseconds, {medians(plan['rounds'])}; below each row its change against none.\n"
        "TTFT is the median of the long, of the short prompts. A stall step: requests\n"
        "decode, and 128 tokens more than the promised 128 come before their next token."
    )
    for sweep in result["sweeps"]:
        tables = [sweep_table(sweep, "chunk", NONE)] if NONE in sweep["runs"] else []
        yield Group(title(sweep), *tables, targets(sweep_targets(sweep)))
    for case in result["policies"]:
        table = sweep_table(case, "policy", "unchunked")
        chunk = f"the policies that cut it take chunks of {plan['policy_step']}"
        yield Group(title(case, chunk), table, targets(policy_targets(case)))
    for case in result.get("engines", ()):
        table = sweep_table(case, "engine", next(iter(case["runs"])))
        yield Group(title(case, ARRIVALS if case["name"] == "decode-heavy" else ""), table)


def title(case: Mapping[str, Any], more: str = "") -> Text:
    """The name of a workload in bold and what it is, and a further line on it."""
    return Text.assemble((case["name"], "bold"), ": ", case["says"], f"\n{more}" if more else "")
