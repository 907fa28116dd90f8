"""Replicas, as the endpoints see them: what `EngineService` is for one engine. Knows no Ray."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from weakref import WeakSet

from tiny_llm_engine.models.tokenization import Tokenizer
from tiny_llm_engine.solutions.solution import resolve_serving

from ..openai_api.errors import ApiError, not_serving, unavailable
from ..openai_api.server_options import ServerOptions
from ..openai_api.service_contract import ServedModel, ServiceRequest
from ..openai_api.text_work import TextWork
from .replica_metrics import ReplicaMetrics
from .replica_request import CallReplica, ReplicaFacts
from .replica_stream import ReplicaStream

LOOK_SECONDS = 0.05  # between two looks at the open requests of a drain
NO_REPLICA = "no replica has accepted the request in time: try again later"


async def until_ended(is_open: Callable[[], bool], seconds: float) -> None:
    """Wait until no request is open, at most this long."""
    end = time.monotonic() + seconds
    while is_open() and time.monotonic() < end:
        await asyncio.sleep(LOOK_SECONDS)


class ReplicatedService:
    """Sends requests to replicas, and knows the state of the HTTP side.

    Args:
        tokenizer: prompts are encoded here, once.
        facts: asks a replica about its engine; returns when one is ready.
        call: sends a request to a replica, which the router chooses.
        lost: the exceptions that mean that a replica has died.
        metrics: counts lost and retried requests.
    """

    def __init__(
        self,
        options: ServerOptions,
        tokenizer: Tokenizer,
        facts: Callable[[], Awaitable[ReplicaFacts]],
        call: CallReplica,
        lost: tuple[type[BaseException], ...],
        metrics: ReplicaMetrics,
    ):
        self.options, self._tokenizer, self._ask_facts = options, tokenizer, facts
        self._call, self._lost, self._metrics = call, lost, metrics
        self.names = resolve_serving(options.solution)
        self.state, self.failure = "starting", None
        self.created = int(time.time())
        self._facts: ReplicaFacts | None = None
        self._streams: WeakSet[ReplicaStream] = WeakSet()
        self.texts = TextWork()

    async def run(self) -> None:
        """Wait for a replica, and accept requests."""
        self._facts = await self._ask_facts()
        if self.state == "starting":
            self.state = "ready"

    async def drain(self) -> None:
        """Refuse new requests with 503, and return when the open ones have ended, or `drain_timeout` is over.

        Ray itself takes the path away before it waits, which would make every answer a 404.
        """
        self.state = "stopping"
        await until_ended(
            lambda: any(not stream.is_closed for stream in self._streams), self.options.drain_timeout
        )

    async def stop(self) -> None:
        """Refuse new requests. Ray waits for the open ones."""
        self.state = "stopped"
        self.texts.close()

    @property
    def context(self) -> int | None:
        """Tokens of a prompt and its answer; None before a replica was ready."""
        return None if self._facts is None else self._facts.max_model_len

    @property
    def model(self) -> ServedModel:
        """What is known of the replicas' model.

        Raises:
            ApiError: no replica was ready yet: 503.
        """
        if self.state != "ready" or self._facts is None:
            raise not_serving(self.state)
        return ServedModel(self._tokenizer, self._facts.max_model_len, self._facts.vocab_size)

    def check_room(self, prompts: int, n: int) -> None:
        """Refuse more answers than one replica ever takes at once; whether it has room now, the replica knows.

        Raises:
            ApiError: 400.
        """
        answers, field = prompts * n, "prompt" if prompts > 1 else "n"
        if self._facts is not None and answers > (most := self._facts.max_open):
            message = f"{field}: {answers} answers at once: a replica takes at most {most}"
            raise ApiError(400, message, param=field)

    async def submit(self, request: ServiceRequest, streamed: bool = True) -> ReplicaStream:
        """Send a request to a replica; see `ModelService.submit`.

        Raises:
            ApiError: what the replica refuses it with; 503 when none accepts it in time.
        """
        metrics = self._metrics.count_loss, self._metrics.on_answer
        stream = ReplicaStream(request, self._call, self._lost, streamed, *metrics)
        self._streams.add(stream)
        try:
            return await asyncio.wait_for(stream.accepted(), self.options.request_timeout)
        except asyncio.TimeoutError:
            stream.close()
            raise unavailable(NO_REPLICA) from None
        except BaseException:
            stream.close()
            raise
