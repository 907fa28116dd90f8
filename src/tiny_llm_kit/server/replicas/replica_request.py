"""What the HTTP side and a replica send each other: token ids there, pieces back."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...solution_types import Piece
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
    prompt_sampled: Mapping[int, Any] = field(default_factory=dict)


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


# Sends a request to a replica and returns an asynchronous iterator of `ReplicaPieces`, or of one `ApiError`, that has
# `cancel()`. The iterator raises if the replica dies.
CallReplica = Callable[[ServiceRequest], Any]
