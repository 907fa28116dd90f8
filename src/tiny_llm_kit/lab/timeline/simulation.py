"""The same requests in chunks of many sizes, in virtual time: runs that would take minutes, in a moment."""

from types import ModuleType

from ..simulated_model import Costs, SimulatedModel, SimulatedTokenizer
from .trace import WHOLE, Trace
from .workload import Workload, serve

SIZES = (32, 64, 128, 256, 512, 1024, WHOLE)
PROVENANCE = {"model": "simulated", "virtual_time": True}


def simulate(workload: Workload, serving: ModuleType, chunk: int, costs: Costs | None = None) -> Trace:
    """One run of the solution's scheduler on the simulated model."""
    model = SimulatedModel(costs)
    return serve(workload, serving, model, SimulatedTokenizer(), chunk, model.clock, PROVENANCE)


def every_size(workload: Workload, serving: ModuleType, costs: Costs | None = None) -> list[Trace]:
    """A run for each chunk size that makes a difference, the smallest first, whole prompts last.

    What was agreed stays the same, so that larger chunks stall.
    """
    smaller = {*SIZES, workload.prefill_step} - {WHOLE}
    sizes = sorted(size for size in smaller if size < workload.prompt_tokens)
    return [simulate(workload, serving, size, costs) for size in [*sizes, WHOLE]]
