"""Results of `bench-stalls` as tables: what streams and prompts notice, memory, and keys and values that move."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.table import Table

from tiny_llm_course.trace.text import counted

from .report import Report, header, median, medians, results_table

Column = tuple[str, str, int, float]  # heading, key, digits and factor

GAPS: tuple[Column, ...] = (("gap", "gap_ms", 0, 1), ("TBT p99", "tbt_p99_ms", 0, 1))
FIRST: tuple[Column, ...] = (("TTFT p50", "ttft_p50_ms", 0, 1), ("p90", "ttft_p90_ms", 0, 1))
SPEEDS: tuple[Column, ...] = (("streams", "stream_throughput", 1, 1), ("prompts", "prompt_throughput", 0, 1))
MEMORY: tuple[Column, ...] = (("GB", "rest_bytes", 2, 1e-9), ("after", "after_bytes", 2, 1e-9))
TRANSFERS: tuple[Column, ...] = (
    ("MB moved", "moved_bytes", 0, 1e-6),
    ("awaited, s", "awaited_seconds", 2, 1),
    ("transfer, %", "transfer_share", 1, 100),
    ("given up", "given_up", 0, 1),
)
TERMS = {
    "gap": "the longest between two tokens of a stream",
    "streams, prompts": "tokens per second of each",
    "GB, after": "memory of the server's processes at rest and after the load; pages that they share count in each",
}
TRANSFER_TERMS = {
    "awaited": "until the keys and values of a prompt were there",
    "transfer": "the share of this in which the prompt was neither computed nor in a queue for it",
}


def report(result: Mapping[str, Any]) -> Report:
    """What was sent, a row for each server in each case, and what went wrong."""
    plan, speeds = result["plan"], result["prompt_speeds"]
    yield header(result)
    yield f"{counted(plan['streams'], 'stream')}; {medians(plan['rounds'])}; the client shares the machine"
    if speeds:
        known = ", ".join(
            f"prompts of {float(tokens):,.0f} at {speed:,.0f} tokens/s" for tokens, speed in speeds.items()
        )
        yield f"A load of 1: {known}"
        yield table(result, "server, ms", (*GAPS, *FIRST, *SPEEDS))
        yield table(result, "server", (*TRANSFERS, *MEMORY))
    else:
        yield table(result, "server, ms", (*GAPS, *FIRST[:1], *SPEEDS, *MEMORY))
    yield "\n".join(lines(result, {**TERMS, **TRANSFER_TERMS} if speeds else TERMS))


def table(result: Mapping[str, Any], first: str, columns: Sequence[Column]) -> Table:
    """Medians of the rounds; `first` is the heading of the names."""
    rows = (
        (name, case, *(median(runs, key, digits, factor) for _, key, digits, factor in columns))
        for case, servers in result["runs"].items()
        for name, runs in ((name, [with_transfers(run) for run in each]) for name, each in servers.items())
    )
    return results_table((first, "load", *(heading for heading, *_ in columns)), rows)


def with_transfers(run: Mapping[str, Any]) -> dict[str, Any]:
    """A run with its figures of transfers; None where no engine gets keys and values of another."""
    found = run["counters"]
    awaited, computed = found.get("awaited_seconds"), found.get("computed_seconds", 0.0)
    return {
        **run,
        "moved_bytes": found.get("moved_bytes"),
        "given_up": found.get("given_up"),
        "awaited_seconds": awaited and awaited / max(run["completed"], 1),
        "transfer_share": max(0.0, 1 - computed / awaited) if awaited else None,
    }


def lines(result: Mapping[str, Any], terms: Mapping[str, str]) -> Iterator[str]:
    """What the columns mean, which server is missing, and each kind of failure."""
    yield from (f"{term}: {meaning}" for term, meaning in terms.items())
    yield from result["notes"]
    for case, servers in result["runs"].items():
        for name, runs in servers.items():
            errors = sum((Counter(run["errors"]) for run in runs), Counter[str]())
            yield from (f"{name}, {case}: {counted(number, 'request')}: {e}" for e, number in errors.items())
