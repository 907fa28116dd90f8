"""Quality as a table: perplexity, the most probable token and log-probabilities beside those of float32."""

from collections.abc import Mapping
from typing import Any

from rich.console import Group

from .report import Report, header, results_table, targets

MOST_DIFFERENCE, LEAST_SAME, MOST_CHANGE = 0.05, 95, 1  # of a default on a CPU: mean, per cent, per cent


def may_be_a_default(found: Mapping[str, float]) -> bool:
    """Whether a way rounds no more than a default may."""
    return (
        found["mean_difference"] <= MOST_DIFFERENCE
        and found["same_best"] >= LEAST_SAME
        and found["perplexity_change"] <= MOST_CHANGE
    )


def report(result: Mapping[str, Any]) -> Report:
    """What was read, a row for each way, and which of them may be a default."""
    plan, found = result["plan"], result["results"]
    size = f"{plan['tokens']:,} tokens of English in windows of {plan['window']:,}"
    rows = (
        (
            name,
            f"{each['tokens']:,}",
            f"{each['perplexity']:.3f}",
            f"{each['perplexity_change']:+.2f} %",
            f"{each['same_best']:.1f} %",
            f"{each['mean_difference']:.4f}",
            f"{each['largest_difference']:.3f}",
        )
        for name, each in found.items()
    )
    yield header(result, plan["model"], size)
    yield results_table(("", "tokens", "perplexity", "change", "top 1", "mean |Δ log p|", "largest"), rows)
    yield (
        "bf16: activations, and plain weights; int8, int16: activations rounded for quantised weights; auto: the "
        "usual product"
    )
    limits = (
        f"A default may have a mean |Δ log p| of {MOST_DIFFERENCE}, {LEAST_SAME} % of the most probable tokens, "
        f"and {MOST_CHANGE} % more perplexity:"
    )
    yield Group(limits, targets((name, may_be_a_default(each)) for name, each in found.items()))
    if result["left_out"]:
        yield "\n".join(f"Left out: {line}" for line in result["left_out"])
