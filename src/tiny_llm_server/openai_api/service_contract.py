"""What the endpoints ask of a service: an `EngineService`, or a `ReplicatedService`."""

from collections.abc import AsyncIterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from tiny_llm_engine.models.tokenization import Tokenizer
from tiny_llm_engine.solutions.solution_types import Piece, Sampled, SamplingParams, ServingPackage

from .server_options import ServerOptions
from .text_work import TextWork


@dataclass(frozen=True)
class ServedModel:
    """The model of a service that is ready.

    Args:
        tokenizer: encodes prompts.
        max_model_len: tokens of a prompt and its answer.
        vocab_size: number of token ids.
    """

    tokenizer: Tokenizer
    max_model_len: int
    vocab_size: int


@dataclass(frozen=True)
class ServiceRequest:
    """A request as the endpoints submit it, and as it goes to a replica.

    Args:
        prompts: token ids of each prompt.
        params: `SamplingParams` of the solution, for all of them.
        priority: "interactive" or "batch".
        fields: what the client calls each prompt, for errors.
    """

    prompts: Sequence[Sequence[int]]
    params: SamplingParams
    priority: str
    fields: Sequence[str]

    @property
    def num_answers(self) -> int:
        return len(self.prompts) * self.params.n

    def answer_tokens(self, estimate: int) -> int:
        """Tokens of all answers at most, or `estimate` for each if there is no limit."""
        limit = self.params.max_tokens
        return self.num_answers * (estimate if limit is None else limit)


class AnswerState(Protocol):
    """What one answer has so far.

    Attributes:
        num_cached: tokens of the prompt that the prefix cache had.
        prompt_sampled: what the model thought of the prompt's tokens, by position, if the request asked for it.
    """

    @property
    def num_prompt_tokens(self) -> int: ...

    @property
    def num_cached(self) -> int: ...

    @property
    def tokens(self) -> Sequence[object]: ...

    @property
    def prompt_sampled(self) -> Mapping[int, Sampled]: ...


class AnswerStream(AsyncIterable[Sequence[Piece]], Protocol):
    """The pieces of a request's answers, as they come."""

    @property
    def sequences(self) -> Sequence[AnswerState]:
        """Each answer, in the order of the prompts."""
        ...

    def close(self) -> None:
        """The reader leaves: its answers end."""


class RunningService(Protocol):
    """Knows the state of a server: "starting", "ready", "stopping", "stopped" or "dead"."""

    options: ServerOptions
    failure: BaseException | None  # what has ended it

    @property
    def state(self) -> str: ...

    @property
    def context(self) -> int | None:
        """Tokens of a prompt and its answer; None if that is not known, or not yet."""
        ...

    async def run(self) -> None:
        """Serve until `stop`, or until nothing can be served."""

    async def stop(self) -> None:
        """Refuse new requests, and let the open ones end."""


class ModelService(RunningService, Protocol):
    """A service that submits prompts to a model."""

    names: ServingPackage
    created: int
    texts: TextWork

    @property
    def model(self) -> ServedModel:
        """What is served. Raises ApiError 503 if it is not ready."""
        ...

    def check_room(self, prompts: int, n: int) -> None:
        """Refuse a request for too many answers, `n` to each prompt, before the prompts are read."""

    async def submit(self, request: ServiceRequest, streamed: bool = True) -> AnswerStream:
        """Let prompts wait for their turn, as one request.

        Args:
            streamed: whether the client gets each piece at once; only a service with replicas needs to know.

        Returns:
            The stream of `params.n` answers to each prompt, in the order of the prompts.

        Raises:
            ApiError: 400 for a prompt that can never be served, 429 when the queue is full, 503 when not ready.
        """
        ...
