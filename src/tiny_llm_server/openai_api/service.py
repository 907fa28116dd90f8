"""One engine and its loop, as the endpoints see them: submits prompts, and knows the state of the server."""

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from tiny_llm_engine.llm_engine import LLMEngine
from tiny_llm_engine.machine.terminal import FatalError
from tiny_llm_engine.models.tokenization import LONG_TEXT
from tiny_llm_engine.solutions.solution import resolve_serving
from tiny_llm_engine.solutions.solution_types import Event, RequestStream, SamplingParams
from tiny_llm_extensions.grammars.grammar import CompiledGrammar
from tiny_llm_extensions.llm import LLM

from .errors import ApiError, not_serving, overloaded
from .server_options import ServerOptions
from .service_contract import ServedModel, ServiceRequest
from .text_work import TextWork

LOG = logging.getLogger("tiny_llm.server")


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
        listeners: Callable[[LLMEngine], Sequence[Callable[[Event], object]]] = lambda engine: (),
    ):
        self.options, self._open_llm, self._listeners = options, open_llm, listeners
        self.names = resolve_serving(options.solution)
        self.loop = self.names.EngineLoop(1 + options.max_queue, on_failure=self._log_failure)
        self.llm: LLM | None = None
        self.failure: BaseException | None = None  # what has killed the engine, or kept it from opening
        self.created = int(time.time())
        self._stopping: asyncio.Task | None = None
        self._serving: asyncio.Task
        self._event_loop: asyncio.AbstractEventLoop
        self.texts = TextWork()
        self._return_times = ReturnTimes()

    async def run(self) -> None:
        """Opens the engine and serves. Returns after `stop`, or when the engine is dead: then `failure` says why."""
        self._event_loop = asyncio.get_running_loop()
        try:
            await self.loop.open(self._open)
            self._serving = asyncio.create_task(self.loop.serve())
            await self._serving
        except asyncio.CancelledError:
            if self.failure is None:  # else a rank is gone
                raise
        except Exception as error:
            self.failure = error
            if not self.is_known(error):
                LOG.critical("the engine is dead", exc_info=error)

    def is_known(self, error: BaseException) -> bool:
        """Whether one line says it all: of a blank task, or of options with which no engine can be opened."""
        return isinstance(error, (NotImplementedError, FatalError)) or (
            not self.has_opened and isinstance(error, (ImportError, ValueError))
        )

    def _open(self) -> LLMEngine:
        self.llm = self._open_llm()
        self.llm.engine.listeners.extend([self._return_times, *self._listeners(self.llm.engine)])
        self.llm.engine.extensions["ranks"].on_failure = partial(
            self._event_loop.call_soon_threadsafe, self._die
        )
        self.loop.max_open = self.llm.engine.options.max_num_seqs + self.options.max_queue
        return self.llm.engine

    def _die(self, line: str) -> None:
        """A rank is gone, whether or not a step is running: every request ends, and so does the server."""
        self.failure = FatalError(line)
        self._serving.cancel(line)

    def _log_failure(self, error: Exception) -> None:
        if isinstance(error, FatalError):
            return  # the server ends with its line
        LOG.error("a step failed; its requests have ended with an error", exc_info=error)

    async def stop(self) -> None:
        """Refuses new requests, and returns when the open ones have ended or `drain_timeout` is over.

        Stopping twice is stopping once.
        """
        if self._stopping is None:
            self.texts.close()
            self._stopping = asyncio.create_task(self._stop())
        await asyncio.shield(self._stopping)

    async def _stop(self) -> None:
        try:
            await self.loop.stop(self.options.drain_timeout)
        except NotImplementedError as blank:
            self.failure = self.failure or blank

    @property
    def state(self) -> str:
        """ "starting", "ready", "stopping", "stopped" or "dead", as `EngineLoop` has it."""
        return self.loop.state

    @property
    def has_opened(self) -> bool:
        return self.llm is not None

    @property
    def context(self) -> int | None:
        """Tokens of a prompt and its answer; None before the engine has opened."""
        return None if self.llm is None else self.llm.engine.max_model_len

    @property
    def kv_address(self) -> str | None:
        """Where other engines read keys and values of this one; None if they cannot."""
        connector = None if self.llm is None else self.llm.engine.extensions.get("kv_transfer")
        return None if connector is None else connector.address

    @property
    def engine(self) -> LLMEngine:
        """The engine of a server that is ready.

        Raises:
            ApiError: it is not: 503.
        """
        if self.state != "ready" or self.llm is None:
            raise not_serving(self.state)
        return self.llm.engine

    @property
    def model(self) -> ServedModel:
        """What the engine serves. Raises ApiError 503 if it is not ready."""
        engine = self.engine
        return ServedModel(engine.tokenizer, engine.max_model_len, engine.runner.vocab_size)

    def check_room(self, prompts: int, n: int) -> None:
        """Refuse a request for too many answers, `n` to each prompt, before the prompts are read.

        Raises:
            ApiError: 400 for more than are ever taken at once, 429 when the queue is full.
        """
        most, answers, field = self.loop.max_open, prompts * n, "prompt" if prompts > 1 else "n"
        if answers > most:
            message = f"{field}: {answers} answers at once: this server takes at most {most}"
            raise ApiError(400, message, param=field)
        if self.loop.num_open + answers > most:
            raise self._refusal(answers)

    def _refusal(self, answers: int, at_least: int = 1) -> ApiError:
        missing = self.loop.num_open + answers - self.loop.max_open
        seconds = max(at_least, self._return_times.refuse(answers, missing))
        return overloaded(f"too many requests are waiting: try again in {seconds} s", seconds)

    @staticmethod
    def _compile(engine: LLMEngine, params: SamplingParams) -> CompiledGrammar:
        """Compile the grammar of a request before the request is made.

        Raises:
            ApiError: 400, the grammar is unusable.
        """
        try:
            return engine.extensions["grammars"].compiled(params.structured_outputs)
        except ValueError as error:
            raise ApiError(400, str(error), param="structured_outputs") from None

    async def submit(self, request: ServiceRequest, streamed: bool = True) -> RequestStream:
        """See `ModelService.submit`."""
        params = request.params
        engine, requests, held = self.engine, [], None
        if params.structured_outputs is not None:  # a large schema takes as long as a long text
            held = await self.texts.run(LONG_TEXT, partial(self._compile, engine, params))
        for name, ids in zip(request.fields, request.prompts, strict=True):
            requests.append(engine.request(None, ids, params, priority=request.priority))
            if (error := requests[-1].refusal) is not None:
                raise named_error(error, name, params)
            await asyncio.sleep(0)  # others wait for one prompt, not for hundreds
        del held  # each answer has its grammar now
        try:
            return self.loop.submit(requests)
        except self.names.NotServing as error:
            raise not_serving(error.state) from None
        except self.names.QueueFull as full:  # others have come while the prompts were encoded
            raise self._refusal(request.num_answers, full.retry_after) from None


def named_error(error: str, field: str, params: SamplingParams) -> ApiError:
    """400 for a request that can never be served: its sampling parameter is named, or else its prompt."""
    name = error.partition(" ")[0]
    if hasattr(params, name):
        return ApiError(400, error, param=name)
    return ApiError(400, f"{field}: {error}", param=field.partition("[")[0])


LATEST = 60  # seconds; OpenAI's clients obey no longer wait
RECENT = 30.0  # seconds: answers that ended before say little about the pace now
UNKNOWN_PACE = 0.1  # seconds per answer, before two have ended
MARGIN = 1.2  # a client that comes too early is refused again, and has one attempt less


class ReturnTimes:
    """A listener of the engine that learns how fast answers end, and gives each refused client its own time.

    Args:
        clock: seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._ends: deque[float] = deque(maxlen=64)
        # Of refused clients: when they return, and how many answers they ask for.
        self._expected: deque[tuple[float, int]] = deque(maxlen=1000)

    def __call__(self, event: Event) -> None:
        if event.kind == "finish":
            self._ends.append(self._clock())

    def refuse(self, answers: int, missing: int) -> int:
        """Seconds after which a refused client should find room.

        Args:
            answers: how many it asks for.
            missing: places that it lacks now.
        """
        now = self._clock()
        before = sum(count for end, count in self._expected if end > now)
        wait = math.ceil(MARGIN * self._pace(now) * (before + missing))
        seconds = min(LATEST, max(1, wait))
        self._expected.append((now + seconds, answers))
        return seconds

    def _pace(self, now: float) -> float:
        """Seconds per answer."""
        ends = [end for end in self._ends.copy() if now - end < RECENT]
        return (now - ends[0]) / (len(ends) - 1) if len(ends) > 1 else UNKNOWN_PACE
