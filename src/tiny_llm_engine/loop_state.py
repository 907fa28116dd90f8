"""What an `EngineLoop` keeps and shares between its two threads, and the small parts of its loop.

Knows requests, streams and steps. Knows no HTTP, no text, no arrays.
"""

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeVar

from .packed_model import Sampled
from .request_life import SequenceState

T = TypeVar("T")


class Engine(Protocol):
    """What the loop drives: `LLMEngine`, for example. Every call comes from one thread."""

    def add(self, request: Any) -> None:
        """Queues a request of its own kind. One that can never be served has ended already."""

    def step(self) -> Any:
        """Computes one step. If it raises, the requests in the failed call have ended, and no others."""

    def collect_results(self) -> Any:
        """Forgets the requests that have ended."""

    def close(self) -> None:
        """Ends every request."""


class NotServing(Exception):
    """The loop takes no requests: `state` says why."""

    def __init__(self, state: str):
        super().__init__(f"the engine is {state}: no request is taken")
        self.state = state


class QueueFull(Exception):
    """As many requests are open as the loop takes. `retry_after`: seconds until a place should be free."""

    def __init__(self, retry_after: int):
        super().__init__(f"too many requests are waiting: try again in {retry_after} s")
        self.retry_after = retry_after


class StreamedRequest(Protocol):
    """A prompt and its answers, as the engine takes it."""

    @property
    def sequences(self) -> Sequence[SequenceState]:
        """One for each answer."""
        ...

    def abort(self) -> None:
        """Ends all answers that have not ended."""


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


class Stream(Protocol):
    """What is asked of a `RequestStream` here."""

    @property
    def sequences(self) -> Sequence[Any]: ...

    @property
    def is_done(self) -> bool: ...

    def put(self, pieces: Sequence[Any]) -> None: ...

    def fail(self, error: str) -> None: ...


class LoopState:
    """The state of a loop around an engine. One thread serves readers, and a worker thread owns the engine.

    Args:
        max_open, max_failures, on_failure, clock: see `EngineLoop`.

    Raises:
        ValueError: `max_open` is below 1.
    """

    def __init__(
        self,
        max_open: int,
        *,
        max_failures: int = 3,
        on_failure: Callable[[Exception], object] = lambda error: None,
        clock: Callable[[], float] = time.monotonic,
    ):
        if max_open < 1:
            raise ValueError(f"max_open is {max_open}: give at least 1, or no request is ever taken")
        self.max_open, self.max_failures = max_open, max_failures
        self.on_failure, self.clock = on_failure, clock
        self.state = "starting"
        self.engine: Engine  # there when it is open
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="engine")
        # Of the event loop's thread:
        self._open: dict[Any, None] = {}  # in the order of their arrival
        self._arrived: list[Any] = []  # for the next turn
        self._abandoned: list[Any] = []  # likewise
        self._ends: deque[float] = deque(maxlen=16)  # when the last requests ended
        self._wake, self._is_over = asyncio.Event(), asyncio.Event()
        # Of the worker thread:
        self._served: list[Any] = []
        self._failures = 0  # in a row

    async def on_worker(self, function: Callable[..., T], *arguments: Any) -> T:
        """Runs a function on the engine's thread, between two turns."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._worker, partial(function, *arguments))

    async def open(self, open_engine: Callable[[], Engine]) -> None:
        """Makes the engine, on the thread that will own it, and begins to take requests.

        Raises:
            What `open_engine` has raised; the loop is dead then.
        """
        try:
            self.engine = await self.on_worker(open_engine)
        except BaseException as error:
            self._die(error)
            raise
        if self.state == "starting":
            self.state = "ready"

    @property
    def num_open(self) -> int:
        """Sequences that wait or run."""
        return sum(len(stream.sequences) for stream in self._open)

    def retry_after(self) -> int:
        """Seconds until the next request should end: the mean of the last ones, from 1 to 60."""
        if len(self._ends) < 2:
            return 1
        return min(60, max(1, math.ceil((self._ends[-1] - self._ends[0]) / (len(self._ends) - 1))))

    async def _work_comes(self) -> bool:
        """Waits until a request is open. False when none is open, and none will come."""
        while not self._open:
            if self.state == "stopping":
                return False
            self._wake.clear()
            await self._wake.wait()
        return True

    def _deliver(self, news: Sequence[tuple[Any, list]]) -> None:
        """Puts pieces into their streams; those that are done are open no longer."""
        for stream, pieces in news:
            stream.put(pieces)
            if stream.is_done:
                self._open.pop(stream, None)
                self._ends.append(self.clock())

    def _die(self, error: BaseException) -> None:
        """Ends every stream with an error, so that no reader waits for a dead engine."""
        self.state = "dead"
        for stream in self._open:
            stream.fail(f"the engine is dead: {error}")
        self._open.clear()
        self._is_over.set()
