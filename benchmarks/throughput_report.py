"""Throughput as tables: requests and tokens per second of every engine; latencies and counts of our engine."""

import statistics
from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from tiny_llm_kit.trace.tables import figures_table
from tiny_llm_kit.trace.text import counted

from .report import OURS, SEVERAL_TOKENS, model_name, noise, print_header, rounds_and_threads

TTFT = (("TTFT p50", "ttft_p50"), ("p99", "ttft_p99"))
TPOT = (("TPOT p50", "tpot_p50"),)
TBT = (("TBT p50", "tbt_p50"), ("p99", "tbt_p99"), ("longest gap", "longest_gap"))


def seconds_of(runs: list[Mapping]) -> list[float]:
    """The seconds of each run."""
    return [run["seconds"] for run in runs]


def per_second(runs: list[Mapping], *counts: str) -> float:
    """The median rate of these counts together."""
    return statistics.median(sum(run[count] for count in counts) / run["seconds"] for run in runs)


def speeds(result: Mapping[str, Any]) -> Table:
    """A table with a row per engine, ours first."""
    shown = figures_table("engine", "requests/s", "tokens/s", "of answers", "spread", "tiny-llm is")
    ours = per_second(result["runs"][OURS], "requests")
    for name, runs in result["runs"].items():
        shown.add_row(
            name,
            f"{per_second(runs, 'requests'):.2f}",
            f"{per_second(runs, 'prompt_tokens', 'output_tokens'):.1f}",
            f"{per_second(runs, 'output_tokens'):.1f}",
            noise(seconds_of(runs)),
            "" if name == OURS else f"{ours / per_second(runs, 'requests'):.2f} ×",
            style="bold" if name == OURS else "",
        )
    return shown


def latencies(result: Mapping[str, Any]) -> Table:
    """A table of our engine's latencies in milliseconds, in each way that it ran: the medians of the rounds.

    With drafts it has TPOT: TBT is then the time between steps, whatever number of tokens each gave.
    """
    columns = (*TTFT, *(TPOT if has_drafts(result) else ()), *TBT)
    shown = figures_table("ms", *(heading for heading, _ in columns))
    for name, runs in ours(result):
        values = [[run[key] for run in runs if run[key] is not None] for _, key in columns]
        shown.add_row(name, *(f"{1000 * statistics.median(each):.1f}" if each else "–" for each in values))
    return shown


def counts(result: Mapping[str, Any]) -> Table:
    """A table of our engine's counts in its last run, in each way that it ran."""
    shown = figures_table("", "calls", "padding", "prefix hits", "preemptions", "graphs", "peak KV blocks")
    for name, runs in ours(result):
        run = runs[-1]
        shown.add_row(
            name,
            f"{run['calls']:,}",
            padding(run),
            f"{100 * run['cached_tokens'] / run['prompt_tokens']:.1f} %",
            f"{run['preemptions']:,}",
            graphs(run),
            f"{run['peak_blocks']:,} of {run['num_blocks']:,}",
        )
    return shown


def padding(run: Mapping[str, Any]) -> str:
    """The share of padding among the rows that were computed, and among the pages that were read if those have any."""
    rows = 1 - run["scheduled_tokens"] / run["computed_tokens"]
    scheduled, computed = (run.get(f"{kind}_pages", 0) for kind in ("scheduled", "computed"))
    of_pages = f", {100 * (1 - scheduled / computed):.1f} % of pages" if computed > scheduled else ""
    return f"{100 * rows:.1f} %{of_pages}"


def graphs(run: Mapping[str, Any]) -> str:
    """The number of shapes compiled before the first request, and the seconds that it took."""
    count = run.get("compiled_shapes", 0)
    return f"{counted(count, 'shape')}, {run['setup_seconds']:.0f} s" if count else "0 (eager)"


def ours(result: Mapping[str, Any]) -> Iterator[tuple[str, list[Mapping]]]:
    """Our engines: those with more figures than their seconds."""
    return ((name, runs) for name, runs in result["runs"].items() if "calls" in runs[0])


def has_drafts(result: Mapping[str, Any]) -> bool:
    """Whether one of our engines had drafts in its last run."""
    return any(runs[-1].get("draft_tokens") for _, runs in ours(result))


def drafts(result: Mapping[str, Any]) -> Iterator[str]:
    """A line for each engine with drafts: how many of its last run were right. Then a line on the latencies."""
    for name, runs in result["runs"].items():
        run = runs[-1]
        if run.get("draft_tokens"):
            made, right = counted(run["draft_tokens"], "draft"), run["accepted_tokens"]
            where = f" in {counted(run['drafts'], 'decode')}" if "drafts" in run else ""
            each = f", {right / run['drafts']:.1f} per decode" if "drafts" in run else ""
            yield f"{name}: {made}{where}, {100 * right / run['draft_tokens']:.0f} % of them accepted{each}"
    if has_drafts(result):
        yield SEVERAL_TOKENS


def quantized(plan: Mapping[str, Any]) -> str:
    """The quantised parts of the model, and their bits."""
    bits = f", layers in {plan['quantization']}" if plan["quantization"] else ""
    return bits + (f", head in {plan['head_quantization']}" if plan.get("head_quantization") else "")


def show(console: Console, result: Mapping[str, Any]) -> None:
    """Print what was measured, on what machine, and the tables."""
    plan, machine = result["plan"], result["provenance"]["machine"]
    what = f"{model_name(plan)}, {plan['dtype']}{quantized(plan)}"
    print_header(console, result, what, f"{rounds_and_threads(plan)}, load before {machine['load_before']}")
    console.print(f"\n{result['dataset']}")
    chunking = "chunked" if plan["enable_chunked_prefill"] else "whole prompts"
    limits = f"{counted(plan['max_num_seqs'], 'request')} and {counted(result['budget'], 'token')} per step"
    console.print(f"{chunking}, {plan['policy']}; at most {limits}")
    for line in (
        *result.get("notes", ()),
        *drafts(result),
        *(f"Left out: {each}" for each in result["left_out"]),
    ):
        console.print(line)
    for table in (speeds(result), latencies(result), counts(result)):
        console.print()
        console.print(table)
