"""An entry of a plan with drafts, what each of its sampled rows sees, and what guesses. Given."""

from collections import abc
from dataclasses import dataclass
from typing import Any, Protocol

from tiny_llm_engine.request_life import SequenceState
from tiny_llm_engine.scheduled import Scheduled, Text


@dataclass(frozen=True)
class Drafted(Scheduled[Text]):
    """A decode and the drafts after it.

    `size` and `stop` count known tokens alone, so code that ignores drafts sees a plain decode.

    Args:
        sequence, start, size: see `Scheduled`; the size is 1.
        drafts: ids that may follow the last known token. They are not part of `known_tokens`.
    """

    drafts: tuple[int, ...] = ()


def drafts_of(entry: Scheduled) -> tuple[int, ...]:
    """The drafts of any entry of a plan; most entries have none."""
    return entry.drafts if isinstance(entry, Drafted) else ()


def has_drafts(plan: abc.Sequence[Scheduled]) -> bool:
    """Whether any entry of a plan has drafts; without them a step is one of Week 3, in as little time."""
    return any(isinstance(entry, Drafted) for entry in plan)


class SupposedAnswer:
    """A request as its sampled row sees it: the drafts before the row count as its answer.

    Penalties, `min_tokens` and grammars look at the answer so far. A row is drawn only if all drafts before it are
    right, so these are part of that answer.

    Args:
        sequence: the request.
        drafts: before this row.
    """

    def __init__(self, sequence: SequenceState, drafts: abc.Sequence[int]):
        self.sequence, self.sampling, self.grammar = sequence, sequence.sampling, sequence.grammar
        self.prompt_tokens, self.eos_token_ids = sequence.prompt_tokens, sequence.eos_token_ids
        self.tokens = [*sequence.tokens, *drafts]


def sampled_requests(plan: abc.Sequence[Scheduled]) -> list[SequenceState | SupposedAnswer]:
    """For each sampled row of a batch its request, with the drafts before the row."""
    return [
        SupposedAnswer(entry.sequence, drafts_of(entry)[:count]) if count else entry.sequence
        for entry in plan
        if entry.needs_token
        for count in range(1 + len(drafts_of(entry)))
    ]


class Proposer(Protocol):
    """Guesses the next tokens of requests. A wrong guess costs time and changes no answer."""

    draft_seconds: float  # what one draft of one request costs, in seconds; 0 for next to nothing

    def propose(self, wanted: abc.Sequence[tuple[Any, int]]) -> list[list[int]]:
        """Drafts of several requests.

        Args:
            wanted: requests that are ready to decode, each with the largest number of drafts.

        Returns:
            For each of them the tokens that may follow its known tokens, in their order; empty without a guess.
        """
        ...


@dataclass
class SpeculationCounts:
    """What drafts have come to in the life of an engine.

    Args:
        drafts: entries of plans that had drafts.
        draft_tokens: drafts of all of them.
        accepted_tokens: drafts that were right.
    """

    drafts: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0

    def add(self, draft_tokens: int, accepted_tokens: int) -> None:
        """Counts one entry."""
        self.drafts += 1
        self.draft_tokens += draft_tokens
        self.accepted_tokens += accepted_tokens
