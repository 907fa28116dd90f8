"""A micro-batch on its way through the stages of a pipeline (Day 3.7). Given."""

from collections import abc
from dataclasses import dataclass

from tiny_llm_engine.packed_model import Sampled
from tiny_llm_engine.scheduled import Scheduled


@dataclass(frozen=True)
class InFlight:
    """A micro-batch that is on its way through the stages.

    Args:
        plan: what it computes.
        draws: for each entry, whether the model draws a token for it.
        preemptions: of each entry's request when it was submitted.
        start: when it was planned, in seconds.
    """

    plan: list[Scheduled]
    draws: list[bool]
    preemptions: list[int]
    start: float

    @classmethod
    def of(cls, plan: list[Scheduled], start: float) -> "InFlight":
        """A plan that is about to be submitted."""
        return cls(
            plan,
            [entry.needs_token for entry in plan],
            [entry.sequence.num_preemptions for entry in plan],
            start,
        )

    def valid(self, sampled: abc.Iterable[Sampled]) -> tuple[list[Scheduled], list[Sampled]]:
        """The entries whose requests still wait for them, and their tokens.

        The others have ended or were preempted meanwhile: what was computed is not theirs any more.
        """
        tokens, entries, kept = iter(sampled), [], []
        for entry, draws, count in zip(self.plan, self.draws, self.preemptions, strict=True):
            token = next(tokens) if draws else None
            if entry.sequence.is_done or entry.sequence.num_preemptions != count:
                continue
            entries.append(entry)
            if token is not None:
                kept.append(token)
        return entries, kept
