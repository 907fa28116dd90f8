"""The screen of Day 3.5: what a step costs, one trace through all policies, and the table of the incidents."""

import math
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ...engine.port import Port
from ...solution_types import ServingPackage
from ...trace.incidents import IncidentCase, IncidentRun, Sent, group
from ...trace.incidents.table import incident_table
from ...trace.simulation.cost_fit import fit_line, measured_cost
from ...trace.simulation.step_cost import INCIDENTS, AdditiveCost, StepCost, StepWork
from .shared import serving_of

SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
CONTEXT = 256  # tokens that each measured decode sees
TARGETS = (5, 10, 20, 40)  # ms
COLUMN = 60  # ms of a cell in the strips
SHORT = {
    "static": "static", "decode-first": "dec", "prefill-first": "pre", "orca": "orca",
    "chunks-only": "chunks", "sarathi": "sarathi", "paced": "paced", "slack": "slack",
}  # fmt: skip
TRACE = IncidentCase(
    (
        *group(3, Sent("A", 0, 16, 90)),
        Sent("L", 200, 6_000, 10),
        *group(4, Sent("s", 300, 100, 10), every=150),
    ),
    (),
)


@dataclass(frozen=True)
class DearMixing:
    """A device whose mixed steps run everything in a slow kernel, at a multiple of the prompts' cost."""

    plain: AdditiveCost  # what steps of one kind cost
    times: float  # how much dearer the prompts of a mixed step are

    def seconds(self, work: StepWork) -> Any:
        dearer = self.times - 1 if work.chunk_tokens and work.decodes else 0.0
        return self.plain.seconds(work) + dearer * self.plain.prefill.b * work.chunk_tokens


def show(b: Port, console: Console) -> None:
    """Draw with the learner's profile and policies; the costs are those of a measured machine, or of the incidents."""
    s = serving_of(b)
    _profile(s, console)
    _policies(s, console)
    _mixing(s, console)
    console.print("the starvation corpus: ✗ breaks a bound")
    table = incident_table(s, list(s.POLICIES))
    for column in table.columns[2:]:
        column.header = SHORT.get(str(column.header), str(column.header))
    console.print(table)


def _profile(s: ServingPackage, console: Console) -> None:
    """The roofline of the shipped model's steps, and the budgets that follow from it."""
    costs = measured_cost()
    profile = s.profile_steps(lambda tokens, decodes: _measured(costs, tokens, decodes), SIZES, fit_line)
    console.print("a step of the shipped model, measured for the widget of Day 2.7, in ms")
    table = Table("tokens", *map(str, SIZES), box=None, pad_edge=False)
    for name, decodes in (("prompt", False), ("decodes", True)):
        seen = [_measured(costs, size, size * decodes) for size in SIZES]
        table.add_row(name, *(f"{1000 * seconds:.1f}" for seconds in seen))
    said = [profile.seconds(size, size) for size in SIZES]
    table.add_row("TPOT", *(f"{1000 * seconds:.1f}" for seconds in said))
    table.add_row("tokens/s", *(f"{size / seconds:.0f}" for size, seconds in zip(SIZES, said, strict=True)))
    console.print(table)
    _picture(console, costs, profile)
    budgets = Table("target ms", *map(str, TARGETS), box=None, pad_edge=False)
    for decodes in (0, 8):
        found = [profile.tokens_within(ms / 1000, decodes, 32, 4_096) for ms in TARGETS]
        budgets.add_row(f"budget, {decodes} decode", *map(str, found))
    console.print(budgets)
    console.print("largest multiple of 32 tokens\n", style="dim")


def _measured(costs: AdditiveCost, tokens: int, decodes: int) -> float:
    work = StepWork.of([], [CONTEXT] * decodes) if decodes else StepWork.of([(tokens, 0)])
    return costs.seconds(work)


def _picture(console: Console, costs: AdditiveCost, profile: Any) -> None:
    """Seconds by tokens, both on a scale of powers of two: the profile, and the measured steps on it."""
    rows: dict[int, list[str]] = {}

    def put(tokens: float, seconds: float, mark: str) -> None:
        row = rows.setdefault(round(2 * math.log2(1000 * seconds)), [" "] * 55)
        row[round(6 * math.log2(tokens))] = mark

    for x in range(55):
        put(2 ** (x / 6), profile.seconds(2 ** (x / 6)), "·")
    for size in SIZES:
        put(size, _measured(costs, size, size), "d")
        put(size, _measured(costs, size, 0), "p")
    for y in range(max(rows), min(rows) - 1, -1):
        console.print(f"{2 ** (y / 2):6.1f} ms │{''.join(rows.get(y, []))}")
    console.print(" " * 10 + "└" + "─" * 55)
    console.print(" " * 11 + "1" + " " * 23 + "16 tokens" + " " * 19 + "512")
    console.print(" " * 11 + "p prompts, d decodes, as measured; · the profile of a prompt\n", style="dim")


def _policies(s: ServingPackage, console: Console) -> None:
    console.print(
        "three answers; a prompt L of 6,000 tokens at 200 ms; four short ones from 300 ms\n"
        f"each cell is {COLUMN} ms of A0: ▪ at least one token, · none"
    )
    table = Table("policy", "A0", "gap", "TTFT L", "TTFT s", box=None, pad_edge=False)
    for policy in s.POLICIES:
        run = IncidentRun(s, policy, TRACE)
        cells = Text(_strip(run.times["A0"].token_times))
        table.add_row(policy, cells, *(f"{n:,.0f}" for n in (run.gap("A*"), run.ttft("L"), run.ttft("s*"))))
    console.print(table)
    console.print("longest gap of an answer, and longest time to a first token, in ms\n", style="dim")


def _strip(times: list[float]) -> str:
    seen = {int(time // COLUMN) for time in times}
    return "".join("▪" if cell in seen else "·" for cell in range(max(seen) + 1))


def _mixing(s: ServingPackage, console: Console) -> None:
    """Compare one trace where mixed steps are cheap with the same where they are expensive."""
    console.print("mean time of a token of the answers, and TTFT of L, in ms")
    table = Table(
        "a prompt token in a mixed step costs", "as alone", "three times as much", box=None, pad_edge=False
    )
    costs: list[StepCost] = [INCIDENTS, DearMixing(INCIDENTS, 3.0)]
    for policy, options in (("sarathi", {}), ("chunks-only", {}), ("paced", {"decodes_between": 2})):
        runs = [IncidentRun(s, policy, TRACE, cost=cost, **options) for cost in costs]
        cells = [f"{(run.end('A*') - run.ttft('A*')) / 89:4.1f}  {run.ttft('L'):6,.0f}" for run in runs]
        table.add_row(policy + (", 2 decodes between" if options else ""), *cells)
    console.print(table)
    console.print()
