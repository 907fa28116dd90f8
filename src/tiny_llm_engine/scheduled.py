"""What a scheduler plans: the entries of a step, which are tokens of requests. Given."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from .events import Part
from .request_life import SequenceState
from .sampling import SamplingParams


class KnownText(Protocol):
    """What a plan says something about: a text whose tokens are known before they are computed."""

    known_tokens: list[int]
    sampling: SamplingParams
    block_table: Any  # of the solution

    @property
    def num_prompt_tokens(self) -> int: ...


Text = TypeVar("Text", bound=KnownText)


@dataclass(frozen=True)
class Scheduled(Generic[Text]):
    """An entry of a plan: the tokens of one request that the step computes.

    Its properties say what the entry is until `commit` has taken the new tokens.

    Args:
        sequence: the request.
        start: position of the first token.
        size: how many; all of them are known, or it is one that a step in flight draws (Day 4.4).
    """

    sequence: Text
    start: int
    size: int

    @property
    def stop(self) -> int:
        """Position after the last token."""
        return self.start + self.size

    @property
    def needs_token(self) -> bool:
        """Whether it ends with the last token, so that the model has to choose the next one.

        Before the step of that token is committed it is not known yet, and the entry ends after the known ones.
        """
        return self.stop >= len(self.sequence.known_tokens)

    @property
    def is_decode(self) -> bool:
        """Whether it is the last token of an answer, and nothing else."""
        return self.size == 1 and self.needs_token and self.start >= self.sequence.num_prompt_tokens


def step_parts(call: Sequence[Scheduled], running: Sequence[SequenceState]) -> tuple[Part, ...]:
    """The chunks of a call, then its decodes, which have waited for the chunks even in the same call.

    Args:
        call: entries whose tokens are not taken yet.
        running: the requests that run; those of them that are ready to decode have waited for the chunks.
    """
    decodes = tuple(entry.sequence for entry in call if entry.is_decode)
    served = (Part("decode", decodes, len(decodes)),) if decodes else ()
    if len(decodes) == len(call):
        return served
    ready = sum(sequence.is_decoding for sequence in running)
    chunks = [entry for entry in call if not entry.is_decode]
    parts = (Part("chunk", (entry.sequence,), entry.size, entry.start, ready) for entry in chunks)
    return (*parts, *served)
