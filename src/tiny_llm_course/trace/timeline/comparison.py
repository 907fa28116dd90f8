"""The requests of the timeline served twice: whole prompts, then in chunks; and in chunks of many sizes."""

from collections.abc import Callable
from dataclasses import dataclass

from rich.console import Console

from tiny_llm_engine.models.files import Json
from tiny_llm_engine.solutions.solution_types import ServingPackage

from ..serve import Serving, serve
from ..simulation.cost_fit import fit_traces, measured_cost
from ..simulation.simulated_model import SimulatedModel
from ..simulation.step_cost import AdditiveCost
from ..trace import WHOLE, Trace
from ..workload import Workload
from . import chrome, page, terminal
from .words import figures

SIZES = (32, 64, 128, 256, 512, 1024, WHOLE)
PROVENANCE = {"model": "simulated", "virtual_time": True}


def run_once(serving: Serving, workload: Workload, chunk: int, provenance: Json) -> Trace:
    """One run of the solution's scheduler."""
    title = "whole prompts" if chunk >= WHOLE else f"chunks of {chunk}"
    return serve(serving, workload, chunk).trace(title, provenance)


def simulate(
    workload: Workload, names: ServingPackage, chunk: int, costs: AdditiveCost | None = None
) -> Trace:
    """One run on the simulated model."""
    model = SimulatedModel(costs or measured_cost())
    return run_once(Serving(names, model, clock=model.clock), workload, chunk, PROVENANCE)


def every_size(workload: Workload, names: ServingPackage, costs: AdditiveCost | None = None) -> list[Trace]:
    """Runs in virtual time, one per chunk size that makes a difference, whole prompts last.

    The agreed chunk size stays the same, so that larger chunks stall.
    """
    smaller, longest = {*SIZES, workload.promise}, max(spec.tokens for spec in workload.requests)
    sizes = sorted(size for size in smaller if size < longest)
    return [simulate(workload, names, size, costs) for size in [*sizes, WHOLE]]


@dataclass(frozen=True)
class Comparison:
    """The two runs of a workload: whole prompts, and chunks of the agreed size."""

    workload: Workload
    names: ServingPackage
    before: Trace
    after: Trace

    @classmethod
    def of(
        cls,
        workload: Workload,
        names: ServingPackage,
        run: Callable[[Workload, ServingPackage, int], Trace] = simulate,
    ) -> "Comparison":
        """Both runs, by default in virtual time."""
        before, after = (run(workload, names, chunk) for chunk in (WHOLE, workload.promise))
        return cls(workload, names, before, after)

    @property
    def is_simulated(self) -> bool:
        return "virtual_time" in self.before.provenance

    @property
    def about(self) -> str:
        """A description of the workload, and of the model that serves it."""
        if self.is_simulated:
            return f"{self.workload.says}\nSimulated model, virtual time."
        source = self.before.provenance
        return (
            f"{self.workload.says}\nMeasured, one run each: {source['model']}, {source['port']} port, "
            f"{source['device']}. Times vary from run to run."
        )

    def show(self, console: Console) -> None:
        """Draw both runs on a terminal."""
        console.print(self.about)
        console.print()
        terminal.show(console, self.before, self.after, figures(self.before, self.after))

    def chrome_trace(self) -> str:
        """Both runs as a file for ui.perfetto.dev."""
        return chrome.text([self.before, self.after])

    def html(self) -> str:
        """Both runs as a page, with the same requests in chunks of every size in virtual time."""
        costs = None if self.is_simulated else fit_traces([self.before, self.after])
        sizes = every_size(self.workload, self.names, costs)
        rows = figures(self.before, self.after)
        return page.html(self.about, self.before, self.after, rows, sizes, costs)
