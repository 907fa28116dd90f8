"""A pipeline in virtual time: how long a stage waits because consecutive micro-batches take unequal time.

A micro-batch passes all stages; each takes its share of a step. A stage that has ended a micro-batch waits until the
next one arrives from the stage before it: that is a bubble, named after the two micro-batches between which it lies.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

from ..simulation.step_cost import StepCost, StepWork

STAGES = 2
# The names of Sarathi-Serve. Prompts of different lengths; a prompt and decodes alone; decodes that read different
# amounts.
KINDS = ("PB1", "PB2", "PB3")


def kind_of(before: StepWork, after: StepWork) -> str:
    """The kind of bubble between two micro-batches, one of the paper's three."""
    prompts = bool(before.chunk_tokens), bool(after.chunk_tokens)
    return "PB1" if all(prompts) else "PB2" if any(prompts) else "PB3"


class SimulatedPipeline:
    """Stages through which micro-batches pass in order.

    Args:
        cost: what a step costs when one device computes all of it.
        stages: how many share it.
        shares: the part of the cost that each stage takes; equal when None.
        transfer: seconds in which a stage that is free receives what the stage before it has computed.

    Attributes:
        bubbles: seconds by kind, summed over the stages.
        busy: seconds in which the stages computed, summed likewise.
        tokens: how many tokens all micro-batches had together.
    """

    def __init__(
        self,
        cost: StepCost,
        stages: int = STAGES,
        shares: Sequence[float] | None = None,
        transfer: float = 0.0,
    ):
        self.cost, self.shares, self.transfer = cost, shares or [1 / stages] * stages, transfer
        self.bubbles: Counter[str] = Counter()
        self.busy, self.tokens = 0.0, 0
        self._ends = [0.0] * len(self.shares)  # when each stage has ended what it was sent
        self._last: StepWork | None = None

    def send(self, work: StepWork, ready: float, is_late: bool = False) -> float:
        """Send a micro-batch through the pipeline; return when the last stage has ended it.

        Args:
            work: what it computes.
            ready: seconds; the first stage does not begin before.
            is_late: whether it waited for requests: then no bubble is counted before it.
        """
        seconds, end = self.cost.seconds(work), ready
        for stage, (free, share) in enumerate(zip(self._ends, self.shares, strict=True)):
            start = max(end, free) + (self.transfer if stage else 0.0)
            if self._last is not None and not is_late:
                # A Counter adds up any numbers, and its type knows whole ones alone.
                self.bubbles[kind_of(self._last, work)] += start - free  # pyright: ignore[reportArgumentType]
            self.busy += seconds * share
            self._ends[stage] = end = start + seconds * share
        self._last = work
        self.tokens += work.chunk_tokens + work.decodes
        return end

    @property
    def end(self) -> float:
        """When the last stage has finished everything."""
        return self._ends[-1]

    @property
    def bubble_share(self) -> float:
        """The part of the stages' time in which they waited, from 0 to 1."""
        waited = sum(self.bubbles.values())
        return waited / (self.busy + waited) if self.busy else 0.0


def pass_in_turns(
    cost: StepCost,
    works: Iterable[StepWork],
    stages: int = STAGES,
    shares: Sequence[float] | None = None,
    transfer: float = 0.0,
) -> SimulatedPipeline:
    """Run micro-batches in turns, as many at a time as there are stages, without waiting for requests."""
    pipeline, ends = SimulatedPipeline(cost, stages, shares, transfer), [0.0] * stages
    for number, work in enumerate(works):
        ends[number % stages] = pipeline.send(work, ends[number % stages])
    return pipeline
