"""The engine of one replica. Knows no HTTP and no Ray: requests come in as token ids, and pieces go out."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence

from ...engine.llm import LLM
from ...solution_types import Piece, Sampled
from ..openai_api.errors import ApiError
from ..openai_api.server_options import ServerOptions
from ..openai_api.service import EngineService
from ..openai_api.service_contract import AnswerState, ServiceRequest
from .replica_request import ReplicaFacts, ReplicaPieces


def prompts_of(pieces: Sequence[Piece], sequences: Sequence[AnswerState]) -> dict[int, Mapping[int, Sampled]]:
    """What the model thought of prompts, for the answers whose first tokens these pieces have."""
    first = [piece.index for piece in pieces if len(piece.sampled) == len(sequences[piece.index].tokens)]
    return {index: asked for index in first if (asked := sequences[index].prompt_sampled)}


class EngineReplica:
    """An engine that serves the requests of a remote HTTP side.

    Args:
        open_llm: makes the `LLM`; called on the engine's thread.
    """

    def __init__(self, open_llm: Callable[[], LLM], options: ServerOptions):
        self.service = EngineService(open_llm, options)
        self._running: asyncio.Task | None = None

    async def open(self) -> None:
        """Load the model. Returns when requests are accepted.

        Raises:
            What kept the engine from opening.
        """
        self._running = asyncio.create_task(self.service.run())
        while self.service.state == "starting":
            await asyncio.wait({self._running}, timeout=0.05)
        if self.service.failure is not None:
            raise self.service.failure

    def facts(self) -> ReplicaFacts:
        model = self.service.model
        return ReplicaFacts(model.max_model_len, model.vocab_size, self.service.loop.max_open)

    def check_health(self) -> None:
        """Raise RuntimeError if the engine is dead, so that the replica is replaced."""
        if self.service.state == "dead":
            raise RuntimeError(f"the engine is dead: {self.service.failure}")

    async def generate(self, request: ServiceRequest) -> AsyncGenerator[ReplicaPieces | ApiError, None]:
        """Serve a request: first an empty message, when it was accepted, then its pieces as they come.

        A refused request yields its error. A reader that leaves ends the request.
        """
        try:
            self.service.check_room(len(request.prompts), request.params.n)
            stream = await self.service.submit(request)
        except ApiError as error:
            yield error
            return
        try:
            yield ReplicaPieces((), ())
            async for pieces in stream:
                cached = [sequence.num_cached for sequence in stream.sequences]
                yield ReplicaPieces(pieces, cached, prompts_of(pieces, stream.sequences))
        finally:
            stream.close()

    async def close(self) -> None:
        """Let the open requests end, and close the engine."""
        await self.service.stop()
        if self._running is not None:
            await asyncio.gather(self._running, return_exceptions=True)
