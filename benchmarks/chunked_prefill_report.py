"""Chunked prefill as tables: medians compared with those of whole prompts, and its targets."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tiny_llm_kit.engine.samples import ratio
from tiny_llm_kit.trace.chunk_sweep import NEAR, median, percent, samples
from tiny_llm_kit.trace.tables import figures_table

from .report import medians, noise, print_header, print_target, rounds_and_threads

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


class Target(NamedTuple):
    """A target in words, the figure as text, and whether it is good enough."""

    says: str
    measured: str
    is_met: bool


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


def sweep_table(runs: Mapping[str, Sequence[Mapping]], first: str, baseline: str) -> Table:
    """A row of milliseconds for each candidate; below those of the others, what they are beside the baseline."""
    shown = figures_table(first, *SECONDS.values(), "stall\nsteps", "spread\nof gap", no_wrap=True)
    base = {figure: median(runs[baseline], figure) for figure in SECONDS}
    for name, of_name in runs.items():
        mine = {figure: median(of_name, figure) for figure in SECONDS}
        stalls = statistics.median_low(samples(of_name, "stall_steps"))
        gaps = noise(samples(of_name, "longest_gap"))
        shown.add_row(name, *map(milliseconds, mine.values()), str(stalls), gaps, style="bold")
        if name != baseline:
            shown.add_row("", *(change(mine[figure], base[figure]) for figure in SECONDS))
    return shown


def sweep_targets(sweep: Mapping[str, Any]) -> Iterator[Target]:
    """Targets of one workload: gaps at a chunk of 128, where decodes wait for a long prompt, and the best total."""
    if PROMISED in sweep["runs"] and sweep["name"] == "decode-heavy":
        for figure, words in (("longest_gap", "longest gap"), ("tbt_p99", "TBT p99")):
            factor = times_lower(sweep, figure, PROMISED)
            yield Target(f"{words} at chunk {PROMISED} at least 5 × lower", f"{factor:.1f} ×", factor >= 5)
    chunked = [name for name in sweep["runs"] if name != NONE]
    if chunked:
        best = max(chunked, key=lambda name: times_lower(sweep, "total", name))
        lost = 1 / times_lower(sweep, "total", best) - 1
        text = "total time at the best chunk at most 10 % longer"
        yield Target(text, f"{percent(lost)} at chunk {best}", lost <= 0.10)


def policy_targets(case: Mapping[str, Any]) -> Iterator[Target]:
    """The target for the first token of short prompts: with pausing, compared with the same chunks in order."""
    wanted = {"queued": 20, "arriving": 7}[case["name"]]
    unchunked, in_order, pausing = case["runs"]
    factor = times_lower(case, "ttft_short", pausing, in_order)

    def sooner(place: int) -> float:  # the short prompt at that place, of the sorted ones
        times = {name: [run["ttft_short"][place] for run in runs] for name, runs in case["runs"].items()}
        return ratio(times[in_order], times[pausing])

    than_none = times_lower(case, "ttft_short", pausing, unchunked)
    yield Target(
        f"short prompts' first token with pausing at least {wanted} × sooner than in order",
        f"{factor:.1f} × (the first of them {sooner(0):.0f} ×, the last {sooner(-1):.0f} ×); "
        f"than unchunked {than_none:.1f} ×",
        factor >= wanted,
    )


def show(console: Console, result: Mapping[str, Any]) -> None:
    """Print what was measured, on which machine, the tables, and the targets."""
    plan = result["plan"]
    print_header(console, result, f"{plan['model']}, {plan['dtype']}", rounds_and_threads(plan))
    console.print(
        f"\nMilliseconds, {medians(plan['rounds'])}; below each row its change against none.\n"
        "TTFT is the median of the long, of the short prompts. A stall step: requests\n"
        "decode, and 128 tokens more than the promised 128 come before their next token."
    )
    for sweep in result["sweeps"]:
        _title(console, sweep)
        if NONE in sweep["runs"]:
            console.print(sweep_table(sweep["runs"], "chunk", NONE))
        print_targets(console, sweep_targets(sweep))
    for case in result["policies"]:
        _title(console, case, plan["policy_step"])
        console.print(sweep_table(case["runs"], "policy", "unchunked"))
        print_targets(console, policy_targets(case))

    for case in result.get("engines", ()):
        _title(console, case)
        if case["name"] == "decode-heavy":
            console.print(ARRIVALS)
        console.print(sweep_table(case["runs"], "engine", next(iter(case["runs"]))))


def _title(console: Console, case: Mapping[str, Any], chunk: int | None = None) -> None:
    console.print()
    console.print(Text.assemble((case["name"], "bold"), ": ", case["says"]))
    if chunk is not None:
        console.print(f"the policies that cut it take chunks of {chunk}")


def print_targets(console: Console, found: Iterator[Target]) -> None:
    """Print targets, each with its figure on a line of its own."""
    for target in found:
        print_target(console, target.is_met, f"{target.says}:\n        {target.measured}")
