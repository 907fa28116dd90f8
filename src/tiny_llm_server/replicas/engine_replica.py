"""The engine of one replica. Knows no HTTP and no Ray: requests come in as token ids, and pieces go out."""

import asyncio
from collections.abc import AsyncGenerator, Callable

from tiny_llm_extensions.llm import LLM

from ..openai_api.errors import ApiError
from ..openai_api.server_options import ServerOptions
from ..openai_api.service import EngineService
from ..openai_api.service_contract import ServiceRequest
from .replica_request import ReplicaFacts, ReplicaPieces


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
            begun: set[int] = set()  # the answers of which a piece was sent: sequences may be ahead of it
            async for pieces in stream:
                cached = [sequence.num_cached for sequence in stream.sequences]
                new = {piece.index for piece in pieces} - begun
                begun |= new
                asked = {index: stream.sequences[index].prompt_sampled for index in new}
                yield ReplicaPieces(pieces, cached, {index: found for index, found in asked.items() if found})
        finally:
            stream.close()

    async def close(self) -> None:
        """Let the open requests end, and close the engine."""
        await self.service.stop()
        if self._running is not None:
            await asyncio.gather(self._running, return_exceptions=True)
