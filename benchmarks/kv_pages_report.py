"""Decode steps over pages in each way to keep them, as a table: tokens per second, and what is read."""

from collections.abc import Mapping
from statistics import median
from typing import Any

from rich.console import Console

from tiny_llm_kit.trace.tables import figures_table

from .report import model_name, print_header, rounds_and_threads


def show(console: Console, result: Mapping[str, Any]) -> None:
    """Print a row for each case: tokens per second, and what a step reads of pages that are kept in the first way."""
    plan, of_token = result["plan"], result["token_bytes"]
    first, *others = of_token
    print_header(console, result, f"{model_name(plan)}, {plan['dtype']}", rounds_and_threads(plan))
    sizes = ", ".join(f"{kind} {size:,} bytes" for kind, size in of_token.items())
    console.print(f"\nA token has, in all layers: {sizes}\n")
    table = figures_table("tokens/s", *of_token, *(f"{kind} is" for kind in others), f"MB, {first}")
    for case in result["cases"]:
        speed = {kind: case["rows"] / median(seconds) for kind, seconds in case["seconds"].items()}
        read = case["rows"] * case["context"] * of_token[first]
        table.add_row(
            f"{case['rows']} × {case['context']:,}",
            *(f"{each:.1f}" for each in speed.values()),
            *(f"{speed[kind] / speed[first]:.2f} ×" for kind in others),
            f"{read / 1e6:,.0f}",
        )
    console.print(table)
