"""What a reader of an answer gets, and the request that gives it. Given."""

from collections import abc
from dataclasses import dataclass, field
from typing import Protocol

from .packed_model import Sampled
from .scheduled import SequenceState


@dataclass
class Piece:
    """What one answer has gained since the piece before.

    Args:
        index: which of the request's answers.
        text: characters that follow those of earlier pieces; empty while a character or a stop string is incomplete.
        sampled: its new tokens, with their log-probabilities if the request asked for them.
        finish_reason: of the last piece, "stop", "length", "abort" or "error"; None before.
        error: with "error", one line that says why.
        stop_reason: of the last piece, the stop string or stop token of the request that has ended it.
    """

    index: int
    text: str = ""
    sampled: list[Sampled] = field(default_factory=list)
    finish_reason: str | None = None
    error: str | None = None
    stop_reason: int | str | None = None

    def followed_by(self, later: "Piece") -> "Piece":
        """This piece and the next one of the same answer as one piece."""
        text, sampled = self.text + later.text, self.sampled + later.sampled
        return Piece(self.index, text, sampled, later.finish_reason, later.error, later.stop_reason)


class EngineRequest(Protocol):
    """A prompt and its answers, as the engine takes it."""

    @property
    def sequences(self) -> abc.Sequence[SequenceState]:
        """One for each answer."""
        ...

    def abort(self) -> None:
        """Ends all answers that have not ended."""
