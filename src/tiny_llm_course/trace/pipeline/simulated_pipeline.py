"""A pipeline in virtual time: how long a stage waits because consecutive micro-batches take unequal time.

A micro-batch passes all stages; each takes its share of a step.
"""

from collections.abc import Iterable, Sequence

from ..simulation.step_cost import StepCost, StepWork
from ..simulation.virtual_device import WorkSpan
from .pipeline_run import PipelineRun

STAGES = 2


class SimulatedPipeline:
    """Stages through which micro-batches pass in order.

    Args:
        cost: what a step costs when one device computes all of it.
        stages: how many share it.
        shares: the part of the cost that each stage takes; equal when None.
        transfer: seconds in which a stage that is free receives what the stage before it has computed.

    Attributes:
        run: what the stages did.
    """

    def __init__(
        self,
        cost: StepCost,
        stages: int = STAGES,
        shares: Sequence[float] | None = None,
        transfer: float = 0.0,
    ):
        self.cost, self.shares, self.transfer = cost, shares or [1 / stages] * stages, transfer
        self.run = PipelineRun([], [[] for _ in self.shares])

    def send(self, work: StepWork, ready: float, is_late: bool = False) -> float:
        """Send a micro-batch through the pipeline; return when the last stage has ended it.

        Args:
            work: what it computes.
            ready: seconds; the first stage does not begin before.
            is_late: whether it waited for requests: then no bubble is counted before it.
        """
        seconds, end = self.cost.seconds(work), ready
        for stage, (spans, share) in enumerate(zip(self.run.stages, self.shares, strict=True)):
            free = spans[-1].end if spans else 0.0
            start = max(end, free) + (self.transfer if stage else 0.0)
            end = start + seconds * share
            spans.append(WorkSpan(start, end))
        if is_late:
            self.run.late.add(len(self.run.works))
        self.run.works.append(work)
        return end


def pass_in_turns(
    cost: StepCost,
    works: Iterable[StepWork],
    stages: int = STAGES,
    shares: Sequence[float] | None = None,
    transfer: float = 0.0,
) -> PipelineRun:
    """Run micro-batches in turns, as many at a time as there are stages, without waiting for requests."""
    pipeline, ends = SimulatedPipeline(cost, stages, shares, transfer), [0.0] * stages
    for number, work in enumerate(works):
        ends[number % stages] = pipeline.send(work, ends[number % stages])
    return pipeline.run


def predicted(run: PipelineRun, cost: StepCost, transfer: float = 0.0) -> PipelineRun:
    """The micro-batches of a run in virtual time.

    Args:
        cost: of a whole step, of which each stage has its share.
        transfer: seconds, see `SimulatedPipeline`.
    """
    return pass_in_turns(cost, run.works, len(run.stages), run.shares, transfer)
