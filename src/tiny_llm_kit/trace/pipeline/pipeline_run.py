"""What the stages of a pipeline did in a run: when each computed which micro-batch, and when it waited."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ..simulation.step_cost import StepCost, StepWork
from .simulated_pipeline import SimulatedPipeline, kind_of, pass_in_turns


@dataclass(frozen=True)
class StageSpan:
    """One micro-batch on one stage.

    Args:
        number: of the micro-batch, from 0.
        start, end: seconds from the beginning of the run.
    """

    number: int
    start: float
    end: float


@dataclass(frozen=True)
class Bubble:
    """The time in which a stage waited between two micro-batches.

    Args:
        kind: "PB1", "PB2" or "PB3".
        start, end: seconds from the beginning of the run.
    """

    kind: str
    start: float
    end: float


@dataclass(frozen=True)
class PipelineRun:
    """A run of all stages.

    Args:
        works: of each micro-batch.
        stages: for each stage its spans, in the order of the micro-batches.
    """

    works: Sequence[StepWork]
    stages: Sequence[Sequence[StageSpan]]

    @classmethod
    def of_seconds(
        cls, works: Sequence[StepWork], seconds: Sequence[Sequence[tuple[float, float]]]
    ) -> "PipelineRun":
        """A run from the seconds at which each stage began and ended each micro-batch, on one clock."""
        begin = min(start for stage in seconds for start, _ in stage)
        stages = [
            [StageSpan(number, start - begin, end - begin) for number, (start, end) in enumerate(stage)]
            for stage in seconds
        ]
        return cls(works, stages)

    @property
    def end(self) -> float:
        """Seconds of the whole run."""
        return max(span.end for stage in self.stages for span in stage)

    def busy(self, stage: int) -> float:
        """Seconds in which a stage computed."""
        return sum(span.end - span.start for span in self.stages[stage])

    @property
    def shares(self) -> list[float]:
        """Each stage's part of all the work."""
        seconds = [self.busy(stage) for stage in range(len(self.stages))]
        return [share / sum(seconds) for share in seconds]

    @property
    def samples(self) -> list[tuple[StepWork, float]]:
        """Each micro-batch's work, and the seconds of all stages together."""
        columns = zip(*self.stages, strict=True)
        seconds = (sum(span.end - span.start for span in spans) for spans in columns)
        return list(zip(self.works, seconds, strict=True))

    def bubbles(self, stage: int) -> Iterator[Bubble]:
        """When a stage waited, between its first micro-batch and its last."""
        for before, after in pairwise(self.stages[stage]):
            kind = kind_of(self.works[before.number], self.works[after.number])
            yield Bubble(kind, before.end, max(before.end, after.start))

    def seconds_by_kind(self) -> Counter[str]:
        """Seconds of bubbles by kind, summed over the stages."""
        seconds: Counter[str] = Counter()
        for stage in range(len(self.stages)):
            for bubble in self.bubbles(stage):
                seconds[bubble.kind] += bubble.end - bubble.start  # pyright: ignore[reportArgumentType]
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
