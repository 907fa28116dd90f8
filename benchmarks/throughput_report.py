"""Throughput as tables: requests and tokens per second of every engine; latencies and counts of our engine."""

import statistics
from collections.abc import Iterator, Mapping
from typing import Any

from rich.table import Table

from tiny_llm_course.trace.text import counted

from .report import (
    SEVERAL_TOKENS,
    Report,
    Speed,
    Speeds,
    header,
    median,
    model_name,
    results_table,
    speeds_table,
)

Result = Mapping[str, Any]
TTFT = (("TTFT p50", "ttft_p50"), ("p99", "ttft_p99"))
TPOT = (("TPOT p50", "tpot_p50"),)
TBT = (("TBT p50", "tbt_p50"), ("p99", "tbt_p99"), ("longest gap", "longest_gap"))
OTHERS = "requests/s", "total"  # headings of a speed: requests, and tokens of prompts and answers together


def speeds(result: Result) -> Speeds:
    """The speed of every engine in every case; a result without cases is one."""
    case = "{num_prompts} × {input_len} + {output_len}".format(**result["plan"])
    cases = result.get("cases", {case: result})
    return {
        case: {name: speed(runs) for name, runs in found["runs"].items()} for case, found in cases.items()
    }


def speed(runs: list[Mapping]) -> Speed:
    """Tokens of answers per second, those of prompts where an answer has one token; requests, and all tokens."""
    kind = "output_tokens" if runs[0]["output_tokens"] > runs[0]["requests"] else "prompt_tokens"
    others = (
        f"{per_second(runs, 'requests'):.2f}",
        f"{per_second(runs, 'prompt_tokens', 'output_tokens'):.1f}",
    )
    return Speed(per_second(runs, kind), [run["seconds"] for run in runs], others)


def per_second(runs: list[Mapping], *counts: str) -> float:
    """The median rate of these counts together."""
    return statistics.median(sum(run[count] for count in counts) / run["seconds"] for run in runs)


def latencies(result: Result) -> Table:
    """A table of our engine's latencies in milliseconds, in each way that it ran: the medians of the rounds.

    With drafts it has TPOT: TBT is then the time between steps, whatever number of tokens each gave.
    """
    columns = (*TTFT, *(TPOT if has_drafts(result) else ()), *TBT)
    rows = ((name, *(median(runs, key, 1, scale=1000) for _, key in columns)) for name, runs in ours(result))
    return results_table(("ms", *(heading for heading, _ in columns)), rows)


def counts(result: Result) -> Table:
    """A table of our engine's counts in its last run, in each way that it ran."""
    rows = (
        (
            name,
            f"{run['calls']:,}",
            padding(run),
            f"{100 * run['cached_tokens'] / run['prompt_tokens']:.1f} %",
            f"{run['preemptions']:,}",
            graphs(run),
            f"{run['peak_blocks']:,} of {run['num_blocks']:,}",
        )
        for name, (*_, run) in ours(result)
    )
    headings = "calls", "padding", "prefix hits", "preemptions", "graphs", "peak KV blocks"
    return results_table(("", *headings), rows)


def padding(run: Result) -> str:
    """The share of padding among the rows that were computed, and among the pages that were read if those have any."""
    rows = 1 - run["scheduled_tokens"] / run["computed_tokens"]
    scheduled, computed = (run.get(f"{kind}_pages", 0) for kind in ("scheduled", "computed"))
    of_pages = f", {100 * (1 - scheduled / computed):.1f} % of pages" if computed > scheduled else ""
    return f"{100 * rows:.1f} %{of_pages}"


def graphs(run: Result) -> str:
    """The number of shapes compiled before the first request, and the seconds that it took."""
    count = run.get("compiled_shapes", 0)
    return f"{counted(count, 'shape')}, {run['setup_seconds']:.0f} s" if count else "0 (eager)"


def ours(result: Result) -> Iterator[tuple[str, list[Mapping]]]:
    """Our engines: those with more figures than their seconds."""
    return ((name, runs) for name, runs in result["runs"].items() if "calls" in runs[0])


def has_drafts(result: Result) -> bool:
    """Whether one of our engines had drafts in its last run."""
    return any(runs[-1].get("draft_tokens") for _, runs in ours(result))


def drafts(result: Result) -> Iterator[str]:
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


def quantized(plan: Result) -> str:
    """The quantised parts of the model, and their bits."""
    bits = f", layers in {plan['quantization']}" if plan["quantization"] else ""
    return bits + (f", head in {plan['head_quantization']}" if plan.get("head_quantization") else "")


def report(result: Result) -> Report:
    """What was answered, the speed of every engine, and our engine's latencies and counts."""
    plan = result["plan"]
    chunking = "chunked" if plan["enable_chunked_prefill"] else "whole prompts"
    limits = f"{counted(plan['max_num_seqs'], 'request')} and {counted(result['budget'], 'token')} per step"
    left_out = (f"Left out: {each}" for each in result["left_out"])
    yield header(result, f"{model_name(plan)}, {plan['dtype']}{quantized(plan)}")
    yield "\n".join(
        (
            result["dataset"],
            f"{chunking}, {plan['policy']}; at most {limits}",
            *result.get("notes", ()),
            *drafts(result),
            *left_out,
        )
    )
    yield speeds_table(speeds(result), "engine", *OTHERS)
    yield latencies(result)
    yield counts(result)


def report_of_real_model(result: Result) -> Report:
    """The speed of each engine in each case, drafts, and where the time of a step goes."""
    yield header(result)
    if result["notes"]:
        yield "\n".join(result["notes"])
    yield speeds_table(speeds(result), "engine", *OTHERS)
    if lines := [f"{name}: {line}" for name, case in result["cases"].items() for line in drafts(case)]:
        yield "\n".join(lines)
    if "limits" in result:
        yield "\n".join(shares_of_memory(result))
        rows = ((each["function"], f"{each['ms']:.2f}", f"{each['calls']:.1f}") for each in result["profile"])
        yield results_table(("a step's milliseconds", "own ms", "calls"), rows)


def shares_of_memory(result: Result) -> Iterator[str]:
    """How often memory could deliver the file, and the share of that which each engine decodes of one request."""
    limit, first = result["limits"], next(iter(speeds(result).values()))
    most = limit["bytes_per_second"] / limit["file_bytes"]
    speed_of_memory = f"{limit['bytes_per_second'] / 1e9:.1f} GB/s"
    yield f"Memory delivers {speed_of_memory}, which is the bytes of the file {most:.0f} times per second"
    for name, each in first.items():
        yield f"{name}: {100 * each.tokens_per_second / most:.0f} % of that"
