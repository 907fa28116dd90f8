"""A conversation that returns, as a table: its first token, what another request notices, and the copies."""

from collections.abc import Mapping
from statistics import median
from typing import Any

from rich.console import Console

from tiny_llm_kit.trace.tables import figures_table

from .report import model_name, print_header, rounds_and_threads


def show(console: Console, result: Mapping[str, Any]) -> None:
    """Print a row for each way: medians over the rounds."""
    plan, taken = result["plan"], result["samples"]
    print_header(console, result, f"{model_name(plan)}, {plan['dtype']}", rounds_and_threads(plan))
    console.print(
        f"\nA conversation of {plan['input_len']:,} tokens goes on; the same tokens: in its answer\n"
    )
    times = figures_table("ms", "TTFT", "computed is", "beside", "longest gap", "usual gap")
    copied = figures_table("copies", "MB", "ms per block", "GB/s", "the same")
    computed, answer = middle(taken["computed"], "alone", "ttft"), taken["computed"][0]["alone"]["answer"]
    for name, samples in taken.items():
        alone = middle(samples, "alone", "ttft")
        beside = (middle(samples, "beside", figure) for figure in ("ttft", "gap", "usual"))
        times.add_row(name, in_ms(alone), f"{computed / alone:.1f} ×", *map(in_ms, beside))
        found = [sample[case]["answer"] for sample in samples for case in ("alone", "beside")]
        blocks = median(sample["alone"]["cached"] for sample in samples) / result["block_size"]
        figures = copies(blocks, result["block_bytes"][name], [sample["block"] for sample in samples])
        copied.add_row(name, *figures, f"{found.count(answer)} of {len(found)}")
    console.print(times, "", copied, sep="\n")


def middle(samples: list[Any], case: str, figure: str) -> float:
    """The median of a figure."""
    return median(sample[case][figure] for sample in samples)


def in_ms(seconds: float) -> str:
    """Whole milliseconds."""
    return f"{1e3 * seconds:,.0f}"


def copies(blocks: float, size: int, seconds: list[float | None]) -> tuple[str, str, str]:
    """Bytes, milliseconds per block and bytes per second; nothing where no block was copied."""
    known = [each for each in seconds if each is not None]
    if not known:
        return "", "", ""
    return f"{blocks * size / 1e6:,.0f}", f"{1e3 * median(known):.2f}", f"{size / median(known) / 1e9:.2f}"
