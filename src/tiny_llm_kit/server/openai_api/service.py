"""One engine and its loop, as the endpoints see them: submits prompts, and knows the state of the server."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ...engine.llm import LLM
from ...engine.llm_engine import LLMEngine
from ...engine.port import resolve_serving
from .errors import ApiError, overloaded, unavailable

LOG = logging.getLogger("tiny_llm.server")
LONG_TEXT = 4000  # characters; a longer one is encoded on another thread, so that others need not wait


@dataclass(frozen=True)
class ServerOptions:
    """The options of the server; those of the engine are `EngineOptions`.

    Args:
        model_name: what clients call the model.
        solution: whose `EngineLoop` runs.
        max_queue: answers that wait, beyond `max_num_seqs` that run; more are refused with 429.
        api_key: clients must send it; None lets everybody in.
        request_timeout: seconds until a request is given up.
        drain_timeout: seconds that open requests have to end, once the server stops.
        max_body_bytes: of a request.

    Raises:
        ValueError: a number is out of range.
    """

    model_name: str = "tiny-qwen3"
    solution: str = "ref"
    max_queue: int = 256
    api_key: str | None = None
    request_timeout: float = 600.0
    drain_timeout: float = 30.0
    max_body_bytes: int = 4 * 2**20

    def __post_init__(self):
        for name, least in (("max_queue", 0), ("drain_timeout", 0), ("max_body_bytes", 1)):
            if not getattr(self, name) >= least:  # neither is NaN
                raise ValueError(f"{name} is {getattr(self, name)}: give at least {least}")
        if not self.request_timeout > 0:
            raise ValueError(f"request_timeout is {self.request_timeout}: give more than 0 seconds")
        if self.api_key == "":
            raise ValueError(
                "api_key is empty: an empty key protects nothing; leave it out, or give a longer one"
            )


class EngineService:
    """Opens an engine on a separate thread, and serves until it is stopped.

    Args:
        open_llm: makes the `LLM`; called on the engine's thread, which alone may touch its arrays.
        options: see `ServerOptions`.
        listeners: made from the engine when it is there; each is called with every event of the scheduler.
    """

    def __init__(
        self,
        open_llm: Callable[[], LLM],
        options: ServerOptions,
        listeners: Callable[[LLMEngine], Sequence[Callable[[Any], object]]] = lambda engine: (),
    ):
        self.options, self._open_llm, self._listeners = options, open_llm, listeners
        self.names = resolve_serving(options.solution)
        self.loop = self.names.EngineLoop(1 + options.max_queue, on_failure=self._log_failure)
        self.llm: LLM | None = None
        self.failure: BaseException | None = None  # what has killed the engine, or kept it from opening
        self.created = int(time.time())
        self._stopping: asyncio.Task | None = None

    async def run(self) -> None:
        """Opens the engine and serves. Returns after `stop`, or when the engine is dead: then `failure` says why."""
        try:
            await self.loop.open(self._open)
            await self.loop.serve()
        except Exception as error:
            self.failure = error
            if not self.is_known(error):
                LOG.critical("the engine is dead", exc_info=error)

    def is_known(self, error: Exception) -> bool:
        """Whether one line says it all: of a blank task, or of options with which no engine can be opened."""
        return isinstance(error, NotImplementedError) or (
            not self.has_opened and isinstance(error, (ImportError, ValueError))
        )

    def _open(self) -> LLMEngine:
        self.llm = self._open_llm()
        self.llm.engine.listeners.extend(self._listeners(self.llm.engine))
        self.loop.max_open = self.llm.engine.options.max_num_seqs + self.options.max_queue
        return self.llm.engine

    def _log_failure(self, error: Exception) -> None:
        LOG.error("a step failed; its requests have ended with an error", exc_info=error)

    async def stop(self) -> None:
        """Refuses new requests, and returns when the open ones have ended or `drain_timeout` is over.

        Stopping twice is stopping once.
        """
        if self._stopping is None:
            self._stopping = asyncio.create_task(self.loop.stop(self.options.drain_timeout))
        await asyncio.shield(self._stopping)

    @property
    def has_opened(self) -> bool:
        return self.llm is not None

    @property
    def engine(self) -> LLMEngine:
        """The engine of a server that is ready.

        Raises:
            ApiError: it is not: 503.
        """
        if self.loop.state != "ready" or self.llm is None:
            raise unavailable(f"the server is {self.loop.state}")
        return self.llm.engine

    async def encode(self, text: str) -> list[int]:
        """Token ids of a prompt."""
        tokenizer = self.engine.tokenizer
        if len(text) < LONG_TEXT:
            return tokenizer.encode(text)
        return await asyncio.to_thread(tokenizer.encode, text)

    def submit(self, prompts: Sequence[Sequence[int]], params: Any, priority: str, param: str) -> Any:
        """Lets prompts wait for their turn, as one request.

        Args:
            prompts: token ids.
            params: `SamplingParams` of all of them.
            priority: "interactive" or "batch".
            param: what the client calls the prompt, for errors.

        Returns:
            The `RequestStream` of `params.n` answers to each prompt, in the order of the prompts.

        Raises:
            ApiError: 400 for a prompt that can never be served, 429 when the queue is full, 503 when not ready.
        """
        engine, count = self.engine, len(prompts) * params.n
        if count > self.loop.max_open:
            raise ApiError(400, f"{count} answers at once: this server takes at most {self.loop.max_open}")
        requests = [engine.request(None, ids, params, priority=priority) for ids in prompts]
        for request in requests:
            if (error := request.sequences[0].error) is not None:
                raise ApiError(400, error, param=param)
        try:
            return self.loop.submit(requests)
        except self.names.NotServing as error:
            raise unavailable(f"the server is {error.state}") from None
        except self.names.QueueFull as error:
            raise overloaded(str(error), error.retry_after) from None
