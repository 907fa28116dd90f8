"""The screen of Day 3.5: what a step costs here, one trace through all policies, and the table of the incidents."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tiny_llm_engine.solutions.port import Port
from tiny_llm_engine.solutions.solution import ANY
from tiny_llm_engine.solutions.solution_types import ServingPackage
from tiny_llm_extensions.loading import load_network
from tiny_llm_extensions.profiling.step_timer import StepTimer, fit_line

from ..trace.incidents.incident import IncidentCase, Sent, group
from ..trace.incidents.incident_run import IncidentRun
from ..trace.incidents.table import incident_table
from ..trace.simulation.step_cost import INCIDENTS, AdditiveCost, StepCost, StepWork
from .shared import MODEL

SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
CONTEXT, BLOCK = 256, 32  # tokens that each measured decode sees, and of a block
ROWS = 11  # of the roofline: 1 ms to 1 s
TARGETS = (5, 10, 20, 40)  # ms
COLUMN = 60  # ms of a cell in the strips
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


# What the machine decides: the rows of the first table, the roofline, and the budgets.
MEASURED = (
    r"(mlx|torch) on \w+",
    r"(?<=prompt   ).*",
    r"(?<=decodes  ).*",
    r"(?<=TPOT     ).*",
    r"(?<=tokens/s ).*",
    r"(?<= ms │).*",
    r"(?<=\d decode  ).*",
)


def show(b: Port, console: Console) -> None:
    """Draw with the learner's profile and policies; the costs are measured here, or those of the incidents.

    The measured steps are those of the reference engine: the day needs no array code of the learner's.
    """
    s = b.serving
    _profile(s, b, console)
    _policies(s, console)
    _mixing(s, console)
    _heading("4. The starvation corpus", "✗ breaks a bound", console)
    console.print(incident_table(s, list(s.POLICIES)))


def _heading(title: str, what: str, console: Console) -> None:
    console.print(Text.assemble((title, "bold"), f": {what}\n"))


def _profile(s: ServingPackage, b: Port, console: Console) -> None:
    """The roofline of the shipped model's steps on this machine, and the budgets that follow from it."""
    measured = _step_times(s, b)
    profile = s.profile_steps(lambda tokens, decodes: measured[tokens, decodes], SIZES, fit_line)
    _heading("1. A step of the shipped model", f"measured now, {b.name} on {b.device}, in ms", console)
    table = _columns("tokens", SIZES)
    for name, decodes in (("prompt", False), ("decodes", True)):
        seen = [measured[size, size * decodes] for size in SIZES]
        table.add_row(name, *(f"{1000 * seconds:.1f}" for seconds in seen))
    said = [profile.seconds(size, size) for size in SIZES]
    table.add_row("TPOT", *(f"{1000 * seconds:.1f}" for seconds in said))
    table.add_row("tokens/s", *(f"{size / seconds:.0f}" for size, seconds in zip(SIZES, said, strict=True)))
    console.print(table)
    console.print()
    _picture(console, measured, profile)
    budgets = _columns("target ms", TARGETS)
    for decodes in (0, 8):
        found = [profile.tokens_within(ms / 1000, decodes, 32, 4_096) for ms in TARGETS]
        budgets.add_row(f"budget, {decodes} decode", *map(str, found))
    console.print(budgets)
    console.print("largest multiple of 32 tokens\n\n", style="dim")


def _columns(head: str, sizes: Sequence[int]) -> Table:
    """A table whose columns are as wide on every machine."""
    table = Table(head, box=None, pad_edge=False)
    for size in sizes:
        table.add_column(str(size), width=5, justify="right")
    return table


def _step_times(s: ServingPackage, b: Port) -> dict[tuple[int, int], float]:
    """Seconds of a prompt of each size, and of as many decodes: {(tokens, decodes): seconds}."""
    port = Port(ANY, b.name, b.device)
    network, _ = load_network(port, MODEL, "week3")
    timer = StepTimer(s, port.packed_runner(network, 1, BLOCK), BLOCK, CONTEXT)
    return {(size, decodes): timer.seconds(size, decodes) for size in SIZES for decodes in (0, size)}


def _picture(console: Console, measured: dict[tuple[int, int], float], profile: Any) -> None:
    """Seconds by tokens, both on a scale of powers of two: the profile, and the measured steps on it."""
    rows = [[" "] * 49 for _ in range(ROWS)]

    def put(tokens: float, seconds: float, mark: str) -> None:
        row = min(max(round(math.log2(1000 * seconds)), 0), ROWS - 1)
        rows[row][round(6 * math.log2(tokens))] = mark

    for x in range(49):
        put(2 ** (x / 6), profile.seconds(2 ** (x / 6)), "·")
    for size in SIZES:
        put(size, measured[size, size], "d")
        put(size, measured[size, 0], "p")
    for y in reversed(range(ROWS)):
        console.print(f"{2**y:6} ms │{''.join(rows[y])}")
    console.print(" " * 10 + "└" + "─" * 49)
    console.print(" " * 11 + "1" + " " * 23 + "16 tokens" + " " * 13 + "256")
    console.print(" " * 11 + "p prompts, d decodes, as measured; · the profile of a prompt\n", style="dim")


def _policies(s: ServingPackage, console: Console) -> None:
    _heading("2. One trace through all policies", "virtual time, 10 ms a step, 0.1 ms a token", console)
    console.print(
        "three answers; a prompt L of 6,000 tokens at 200 ms; four short ones from 300 ms\n"
        f"each cell is {COLUMN} ms of A0: ▪ at least one token, · none\n"
    )
    table = Table("policy", "A0", "gap", "TTFT L", "TTFT s", box=None, pad_edge=False)
    for policy in s.POLICIES:
        run = IncidentRun(s, policy, TRACE)
        cells = Text(_strip(run.times["A0"].token_times))
        table.add_row(policy, cells, *(f"{n:,.0f}" for n in (run.gap("A*"), run.ttft("L"), run.ttft("s*"))))
    console.print(table)
    console.print("longest gap of an answer, and longest time to a first token, in ms\n\n", style="dim")


def _strip(times: list[float]) -> str:
    seen = {int(time // COLUMN) for time in times}
    return "".join("▪" if cell in seen else "·" for cell in range(max(seen) + 1))


def _mixing(s: ServingPackage, console: Console) -> None:
    """Compare one trace where mixed steps are cheap with the same where they are expensive."""
    _heading("3. Where mixing is expensive", "mean TBT of the answers, and TTFT of L, in ms", console)
    table = Table(
        "a prompt token in a mixed step costs", "as alone", "three times as much", box=None, pad_edge=False
    )
    costs: list[StepCost] = [INCIDENTS, DearMixing(INCIDENTS, 3.0)]
    for policy, options in (("sarathi", {}), ("chunks-only", {}), ("paced", {"decodes_between": 2})):
        runs = [IncidentRun(s, policy, TRACE, cost=cost, **options) for cost in costs]
        cells = [f"{(run.end('A*') - run.ttft('A*')) / 89:4.1f}  {run.ttft('L'):6,.0f}" for run in runs]
        table.add_row(policy + (", 2 decodes between" if options else ""), *cells)
    console.print(table)
    console.print("\n")
