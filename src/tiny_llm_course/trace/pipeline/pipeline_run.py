"""What the stages of a pipeline did in a run: when each computed which micro-batch, and when it waited."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, starmap

from ..simulation.step_cost import StepCost, StepWork
from ..simulation.virtual_device import WorkSpan
from .simulated_pipeline import SimulatedPipeline, kind_of, pass_in_turns


@dataclass(frozen=True)
class Bubble(WorkSpan):
    """The time in which a stage waited between two micro-batches.

    Args:
        start, end: seconds from the beginning of the run.
        kind: "PB1", "PB2" or "PB3".
    """

    kind: str


@dataclass(frozen=True)
class PipelineRun:
    """A run of all stages.

    Args:
        works: of each micro-batch.
        stages: for each stage a span for each micro-batch, in seconds from the beginning of the run.
    """

    works: Sequence[StepWork]
    stages: Sequence[Sequence[WorkSpan]]

    @classmethod
    def of_seconds(
        cls, works: Sequence[StepWork], seconds: Sequence[Sequence[tuple[float, float]]]
    ) -> "PipelineRun":
        """A run from the seconds at which each stage began and ended each micro-batch, on one clock."""
        begin = min(start for stage in seconds for start, _ in stage)
        return cls(
            works, [[WorkSpan(start - begin, end - begin) for start, end in stage] for stage in seconds]
        )

    @property
    def end(self) -> float:
        """Seconds of the whole run."""
        return max(span.end for stage in self.stages for span in stage)

    def busy(self, stage: int) -> float:
        """Seconds in which a stage computed."""
        return sum(span.seconds for span in self.stages[stage])

    @property
    def shares(self) -> list[float]:
        """Each stage's part of all the work."""
        seconds = [self.busy(stage) for stage in range(len(self.stages))]
        return [share / sum(seconds) for share in seconds]

    @property
    def samples(self) -> list[tuple[StepWork, float]]:
        """Each micro-batch's work, and the seconds of all stages together."""
        seconds = (sum(span.seconds for span in spans) for spans in zip(*self.stages, strict=True))
        return list(zip(self.works, seconds, strict=True))

    def bubbles(self, stage: int) -> Iterator[Bubble]:
        """When a stage waited, between its first micro-batch and its last."""
        kinds = starmap(kind_of, pairwise(self.works))
        for kind, (before, after) in zip(kinds, pairwise(self.stages[stage]), strict=True):
            yield Bubble(before.end, max(before.end, after.start), kind)

    def seconds_by_kind(self) -> Counter[str]:
        """Seconds of bubbles by kind, summed over the stages."""
        seconds: Counter[str] = Counter()
        for stage in range(len(self.stages)):
            for bubble in self.bubbles(stage):
                seconds[bubble.kind] += bubble.seconds  # pyright: ignore[reportArgumentType]
        return seconds

    @property
    def bubble_share(self) -> float:
        """The part of the stages' time in which they waited, from 0 to 1."""
        waited = sum(self.seconds_by_kind().values())
        return waited / (waited + sum(self.busy(stage) for stage in range(len(self.stages))))

    @property
    def transfers(self) -> list[float]:
        """Seconds in which a stage has received each micro-batch, since both it and the stage before were ready."""
        return [
            max(0.0, received.start - max(free.end, sent.end))
            for before, after in pairwise(self.stages)
            for free, sent, received in zip(after, before[1:], after[1:], strict=False)
        ]

    def predicted(self, cost: StepCost, transfer: float = 0.0) -> SimulatedPipeline:
        """The same micro-batches in virtual time.

        Args:
            cost: of a whole step, of which each stage has its share.
            transfer: seconds, see `SimulatedPipeline`.
        """
        return pass_in_turns(cost, self.works, len(self.stages), self.shares, transfer)
