"""What the HTTP side and a replica send each other: token ids there, pieces back."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tiny_llm_engine.solutions.solution_types import Piece, Sampled

from ..openai_api.errors import ApiError
from ..openai_api.service_contract import ServiceRequest


@dataclass(frozen=True)
class ReplicaPieces:
    """What the answers of a request have gained.

    Args:
        pieces: at most one for each answer; none in the first message, which says that the request was accepted.
        num_cached: tokens of each answer's prompt that the prefix cache had.
        prompt_sampled: what the model thought of the tokens of a prompt, by answer, with that answer's first tokens.
    """

    pieces: Sequence[Piece]
    num_cached: Sequence[int]
    prompt_sampled: Mapping[int, Mapping[int, Sampled]] = field(default_factory=dict)


@dataclass(frozen=True)
class ReplicaFacts:
    """What the HTTP side needs to know about the engine of each replica.

    Args:
        max_model_len: tokens of a prompt and its answer.
        vocab_size: number of token ids.
        max_open: answers that one replica takes at once.
    """

    max_model_len: int
    vocab_size: int
    max_open: int


class ReplicaAnswers(Protocol):
    """The messages of a replica about one request: `ReplicaPieces`, or one `ApiError`. Raises if the replica dies."""

    async def __anext__(self) -> ReplicaPieces | ApiError: ...

    def __aiter__(self) -> "ReplicaAnswers": ...

    def cancel(self) -> object:
        """The reader leaves: its answers end."""


# Sends a request to a replica.
CallReplica = Callable[[ServiceRequest], ReplicaAnswers]
