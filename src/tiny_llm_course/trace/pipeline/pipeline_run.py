"""What the stages of a pipeline did in a run: when each computed which micro-batch, and when it waited.

A stage that has ended a micro-batch waits until the next one arrives from the stage before it: that is a bubble, named
after the two micro-batches between which it lies.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, starmap

from ..simulation.step_cost import StepWork
from ..simulation.virtual_device import WorkSpan

# The names of Sarathi-Serve. Prompts of different lengths; a prompt and decodes alone; decodes that read different
# amounts.
KINDS = ("PB1", "PB2", "PB3")


def kind_of(before: StepWork, after: StepWork) -> str:
    """The kind of bubble between two micro-batches, one of the paper's three."""
    prompts = bool(before.chunk_tokens), bool(after.chunk_tokens)
    return "PB1" if all(prompts) else "PB2" if any(prompts) else "PB3"


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
        late: the numbers of micro-batches that waited for requests: no bubble is counted before them.
    """

    works: list[StepWork]
    stages: list[list[WorkSpan]]
    late: set[int] = field(default_factory=set)

    @classmethod
    def of_seconds(
        cls, works: list[StepWork], seconds: Sequence[Sequence[tuple[float, float]]]
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
    def worked(self) -> float:
        """Seconds in which the stages computed, summed over them."""
        return sum(map(self.busy, range(len(self.stages))))

    @property
    def shares(self) -> list[float]:
        """Each stage's part of all the work."""
        return [self.busy(stage) / self.worked for stage in range(len(self.stages))]

    @property
    def samples(self) -> list[tuple[StepWork, float]]:
        """Each micro-batch's work, and the seconds of all stages together."""
        seconds = (sum(span.seconds for span in spans) for spans in zip(*self.stages, strict=True))
        return list(zip(self.works, seconds, strict=True))

    def bubbles(self, stage: int) -> Iterator[Bubble]:
        """When a stage waited, between its first micro-batch and its last."""
        kinds, neighbours = starmap(kind_of, pairwise(self.works)), pairwise(self.stages[stage])
        for number, (kind, (before, after)) in enumerate(zip(kinds, neighbours, strict=True), 1):
            if number not in self.late:
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
        return waited / (waited + self.worked)

    @property
    def transfers(self) -> list[float]:
        """Seconds in which a stage has received each micro-batch, since both it and the stage before were ready."""
        return [
            max(0.0, received.start - max(free.end, sent.end))
            for before, after in pairwise(self.stages)
            for free, sent, received in zip(after, before[1:], after[1:], strict=False)
        ]
