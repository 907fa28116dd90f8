"""The pieces of one request from its replica, and from another one if that dies before the client has seen any."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tiny_llm_engine.solutions.solution_types import Piece, Sampled, SamplingParams

from ..openai_api.errors import ApiError, unavailable
from ..openai_api.service_contract import ServiceRequest
from .replica_request import CallReplica, ReplicaPieces

RETRIES = 1  # a request that kills its replica must not kill all of them
LOST = "the replica that served this request has died: send it again"


@dataclass
class AnswerCounts:
    """What the HTTP side knows of one answer, for its numbers of tokens and for metrics."""

    num_prompt_tokens: int
    sampling: SamplingParams
    num_cached: int = 0
    tokens: list[Sampled] = field(default_factory=list)
    finish_reason: str | None = None
    num_counted: int = 0  # of its tokens, in metrics
    prompt_sampled: Mapping[int, Sampled] = field(default_factory=dict)

    @property
    def request_id(self) -> int:
        """Its number among all answers that are open."""
        return id(self)


# Called with what happens to an answer: "arrive", "refuse", "prefill", "token" or "finish".
OnEvent = Callable[[str, AnswerCounts], object]


class ReplicaStream:
    """A `RequestStream` whose engine is in another process.

    While the client has received nothing, a lost replica is replaced: the request is sent again, to another one. A
    client without a stream receives nothing before the end, so its pieces are kept until then.

    Args:
        request: what is sent.
        call: sends it to a replica.
        lost: the exceptions that mean that a replica has died.
        streamed: whether the client gets each piece at once.
        on_loss: called with whether the request was sent again.
        on_event: see `OnEvent`.
    """

    def __init__(
        self,
        request: ServiceRequest,
        call: CallReplica,
        lost: tuple[type[BaseException], ...],
        streamed: bool,
        on_loss: Callable[[bool], object] = lambda retried: None,
        on_event: OnEvent = lambda kind, answer: None,
    ):
        self._request, self._call, self._lost = request, call, lost
        self._streamed, self._on_loss, self._on_event = streamed, on_loss, on_event
        self._retries, self._has_begun, self.is_closed = RETRIES, False, False
        self._pieces = self._read()
        self._answers = call(request)
        self.sequences = [
            AnswerCounts(len(prompt), request.params)
            for prompt in request.prompts
            for _ in range(request.params.n)
        ]
        self._say("arrive")

    async def accepted(self) -> "ReplicaStream":
        """Wait until a replica has accepted the request.

        Raises:
            ApiError: it was refused, or its replicas have died.
        """
        try:
            await self._next_message()
        except BaseException:
            self._say("refuse")
            for answer in self.sequences:
                answer.finish_reason = "error"
            raise
        self._say("prefill")
        return self

    def __aiter__(self) -> AsyncIterator[Sequence[Piece]]:
        return self._pieces

    def close(self) -> None:
        """The reader leaves: its answers end."""
        if not self.is_closed:
            self.is_closed = True
            self._answers.cancel()
        for answer in self.sequences:
            self._end(answer, "abort")

    def _say(self, kind: str) -> None:
        for answer in self.sequences:
            self._on_event(kind, answer)

    def _end(self, answer: AnswerCounts, reason: str) -> None:
        """Says once that an answer has ended."""
        if answer.finish_reason is None:
            answer.finish_reason = reason
            self._on_event("finish", answer)

    async def _read(self) -> AsyncIterator[Sequence[Piece]]:
        """The pieces as they come, or merged at the end."""
        whole: dict[int, Piece] = {}
        while (message := await self._next_message()) is not None:
            if message.pieces and self._streamed:
                self._has_begun = True
                yield message.pieces
                continue
            if not message.pieces:  # accepted, a second time: begin again
                whole.clear()
            for piece in message.pieces:
                before = whole.get(piece.index)
                whole[piece.index] = piece if before is None else before.followed_by(piece)
        self.is_closed = True
        if whole:
            yield [whole[index] for index in sorted(whole)]

    async def _next_message(self) -> ReplicaPieces | None:
        """The next message; None after the last one."""
        while True:
            try:
                message = await anext(self._answers, None)
            except self._lost:
                self._send_again()
                continue
            if isinstance(message, ApiError):
                raise message
            if message is not None:
                self._count(message)
            return message

    def _send_again(self) -> None:
        """Send the request to another replica.

        Raises:
            ApiError: the client has received a part of the answer, or the request was sent again before: 503.
        """
        again = not self._has_begun and self._retries > 0 and not self.is_closed
        self._on_loss(again)
        if not again:
            raise unavailable(LOST)
        self._retries -= 1
        for answer in self.sequences:  # begins again
            answer.tokens, answer.num_cached = [], 0
        self._answers = self._call(self._request)

    def _count(self, message: ReplicaPieces) -> None:
        for sequence, cached in zip(self.sequences, message.num_cached, strict=False):
            sequence.num_cached = cached
        for index, asked in message.prompt_sampled.items():
            self.sequences[index].prompt_sampled = asked
        for piece in message.pieces:
            answer = self.sequences[piece.index]
            answer.tokens = answer.tokens + piece.sampled
            if len(answer.tokens) > answer.num_counted:  # not again those of a replica that has died
                answer.num_counted = len(answer.tokens)
                self._on_event("token", answer)
            if piece.finish_reason is not None:
                self._end(answer, piece.finish_reason)
