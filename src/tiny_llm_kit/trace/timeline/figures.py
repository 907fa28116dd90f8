"""The figures of two runs beside each other: the gains and costs of chunks."""

from ..trace import Trace
from .words import duration

Row = tuple[str, str, str, str]  # name, both values, and their change


def row(name: str, before: float | None, after: float | None) -> Row:
    """A figure in seconds, and its relative change, such as "−85 %" or "+12 %"."""
    change = ""
    if before and after is not None:
        percent = round(100 * (after / before - 1))
        change = f"{'−' if percent < 0 else '+'}{abs(percent)} %" if percent else "the same"
    return name, duration(before), duration(after), change


def figures(before: Trace, after: Trace) -> list[Row]:
    """The figures that are compared; for stalls the numbers suffice."""
    return [
        ("stall steps", str(before.stall_steps), str(after.stall_steps), ""),
        row("longest gap", before.longest_gap, after.longest_gap),
        row("TBT p99", before.tbt_p99, after.tbt_p99),
        row("TTFT of the long prompt", before.named("long").ttft, after.named("long").ttft),
        row("TTFT of the short one behind it", before.named("late").ttft, after.named("late").ttft),
        row("total time", before.end, after.end),
    ]
