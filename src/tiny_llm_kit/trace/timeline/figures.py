"""The figures of two runs beside each other: the gains and costs of chunks."""

from collections.abc import Iterator
from dataclasses import dataclass

from ..trace import Trace
from .words import duration


@dataclass(frozen=True)
class Figure:
    """One row of the table; "stall steps" are a count, everything else is seconds."""

    name: str
    before: float | None
    after: float | None

    @property
    def texts(self) -> tuple[str, str, str, str]:
        """The row: its name, both values, and their change."""
        show = str if self.name == STALLS else duration
        return self.name, show(self.before), show(self.after), self.change

    @property
    def change(self) -> str:
        """Relative change, such as "−85 %" or "+12 %"; empty for stalls, whose numbers suffice."""
        if self.name == STALLS or not self.before or self.after is None:
            return ""
        percent = round(100 * (self.after / self.before - 1))
        return f"{'−' if percent < 0 else '+'}{abs(percent)} %" if percent else "the same"


STALLS = "stall steps"


def figures(before: Trace, after: Trace) -> Iterator[Figure]:
    """The figures that are compared."""
    yield Figure(STALLS, before.stall_steps, after.stall_steps)
    yield Figure("longest gap", before.longest_gap, after.longest_gap)
    yield Figure("TBT p99", before.tbt_p99, after.tbt_p99)
    for name, lane in (("TTFT of the long prompt", "long"), ("TTFT of the short one behind it", "late")):
        yield Figure(name, before.named(lane).ttft, after.named(lane).ttft)
    yield Figure("total time", before.end, after.end)
