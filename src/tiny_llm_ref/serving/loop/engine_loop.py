"""The loop around a serving engine: many readers on an asyncio event loop, one thread that owns the device.

Knows requests, streams and steps. Knows no HTTP, no text, no arrays: the server of `kit/server` is one user of it.
"""

import asyncio
import math
import time
from collections import abc, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Protocol, TypeVar

from .request_stream import EngineRequest, Piece, RequestStream

T = TypeVar("T")


class Engine(Protocol):
    """What the loop drives: `LLMEngine` of the kit, for example. Every call comes from one thread."""

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


class EngineLoop:
    """Serves requests of many readers with one engine.

    The event loop's thread submits, reads and cancels, and never touches the engine. One worker thread owns the engine
    and the device: it opens the engine, and then runs one `turn` after the other. The two hand over between two turns.

    `state` is "starting", "ready", "stopping", "stopped" or "dead".

    Args:
        max_open: sequences that wait or run at the same time.
        max_failures: number of failed steps in a row after which the engine is dead.
        on_failure: called on the worker thread with what a step has raised.
        clock: seconds.

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
        self._open: dict[RequestStream, None] = {}  # in the order of their arrival
        self._arrived: list[RequestStream] = []  # for the next turn
        self._abandoned: list[RequestStream] = []  # likewise
        self._ends: deque[float] = deque(maxlen=16)  # when the last requests ended
        self._wake, self._is_over = asyncio.Event(), asyncio.Event()
        # Of the worker thread:
        self._served: list[RequestStream] = []
        self._failures = 0  # in a row

    async def on_worker(self, function: Callable[..., T], *arguments: Any) -> T:
        """Runs a function on the engine's thread, between two turns."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._worker, partial(function, *arguments))

    async def open(self, open_engine: Callable[[], Engine]) -> None:
        """Makes the engine, on the thread that will own it, and begins to take requests. Given.

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

    # Admission, on the event loop's thread.

    @property
    def num_open(self) -> int:
        """Sequences that wait or run."""
        return sum(len(stream.sequences) for stream in self._open)

    def submit(self, requests: abc.Sequence[EngineRequest]) -> RequestStream:
        """Accepts the requests of one reader for the next turn: all of their answers, or none.

        Args:
            requests: one for each prompt.

        Raises:
            NotServing: the engine is not ready.
            QueueFull: there is no place for all of them now.
            ValueError: there never will be.
        """
        stream = RequestStream(requests, self.abandon)
        answers = len(stream.sequences)
        if answers > self.max_open:
            raise ValueError(f"{answers} answers at once: at most {self.max_open} are taken")
        # TASK 3.6.2: refuse, or remember the stream as open and as arrived, and wake the loop.
        # In an unbounded queue every request would wait too long, so refuse at once. Do not touch the engine here.
        if self.state != "ready":
            raise NotServing(self.state)
        if self.num_open + answers > self.max_open:
            raise QueueFull(self.retry_after())
        self._open[stream] = None
        self._arrived.append(stream)
        self._wake.set()
        return stream

    def retry_after(self) -> int:
        """Seconds until the next request should end: the mean of the last ones, from 1 to 60. Given."""
        if len(self._ends) < 2:
            return 1
        return min(60, max(1, math.ceil((self._ends[-1] - self._ends[0]) / (len(self._ends) - 1))))

    # One turn, on the worker thread.

    def turn(
        self, arrived: abc.Sequence[RequestStream], abandoned: abc.Sequence[RequestStream]
    ) -> list[tuple[RequestStream, list[Piece]]]:
        """All calls of the engine from one hand-over to the next: aborts, additions, and one step.

        Args:
            arrived: streams of new requests.
            abandoned: streams whose readers have left.

        Returns:
            The streams that have new pieces, with these.

        Raises:
            Whatever has killed the engine.
        """
        # TASK 3.6.3: first the aborts, so that their blocks are free when the step is planned; then the new ones;
        # then the step (`try_step`); then the news of every stream in `_served`.
        # A stream that `has_ended` is served no longer. The engine forgets the ended by `collect_results`.
        for stream in abandoned:
            for request in stream.requests:
                request.abort()
        for stream in arrived:
            self._served.append(stream)
            for request in stream.requests:
                self.engine.add(request)
        self.try_step()
        news = [(stream, pieces) for stream in self._served if (pieces := stream.new_pieces())]
        if any(piece.finish_reason for _, pieces in news for piece in pieces):
            self._served = [stream for stream in self._served if not stream.has_ended]
            self.engine.collect_results()
        return news

    def try_step(self) -> None:
        """One step of the engine. A step that fails has ended its own requests, and the others go on.

        Raises:
            Exception: what the last of `max_failures` failing steps in a row has raised.
        """
        # TASK 3.6.4: a good step forgets the failures before it. Report every failure (`on_failure`).
        # An engine that only fails is dead: a device that is gone does not come back by trying.
        try:
            self.engine.step()
        except Exception as error:
            self._failures += 1
            self.on_failure(error)
            if self._failures >= self.max_failures:
                raise
        else:
            self._failures = 0

    # The loop, on the event loop's thread.

    async def serve(self) -> None:
        """Runs turns while requests are open, and waits while none is.

        Returns after `stop`, when every stream has ended.

        Raises:
            Whatever has killed the engine; every stream has ended then too.
        """
        # TASK 3.6.5: hand over what has come, run a turn on the worker, deliver the news; again.
        # While the worker computes, the event loop serves its readers: nothing here may block, and nothing may poll.
        # If a turn raises, the engine is dead: `_die`.
        try:
            while await self._work_comes():
                arrived, self._arrived = self._arrived, []
                abandoned, self._abandoned = self._abandoned, []
                self._deliver(await self.on_worker(self.turn, arrived, abandoned))
        except BaseException as error:
            self._die(error)
            raise
        self.state = "stopped"
        self._is_over.set()

    # GIVEN: what `serve` is put together from.
    async def _work_comes(self) -> bool:
        """Waits until a request is open. False when none is, and none will come."""
        while not self._open:
            if self.state == "stopping":
                return False
            self._wake.clear()
            await self._wake.wait()
        return True

    # GIVEN: likewise.
    def _deliver(self, news: abc.Sequence[tuple[RequestStream, list[Piece]]]) -> None:
        """Puts pieces into their streams; those that are done are open no longer."""
        for stream, pieces in news:
            stream.put(pieces)
            if stream.is_done:
                self._open.pop(stream, None)
                self._ends.append(self.clock())

    # GIVEN: likewise.
    def _die(self, error: BaseException) -> None:
        """Ends every stream with an error, so that no reader waits for a dead engine."""
        self.state = "dead"
        for stream in self._open:
            stream.fail(f"the engine is dead: {error}")
        self._open.clear()
        self._is_over.set()

    # Ends, on the event loop's thread.

    def abandon(self, stream: RequestStream) -> None:
        """The reader of a stream has left: its request ends before the next step."""
        # TASK 3.6.6: a step may be running, and it writes into the blocks of this request: only hand over.
        # The engine's thread aborts it. A stream that is not open has nothing to abandon.
        if stream in self._open and stream not in self._abandoned:
            self._abandoned.append(stream)

    async def stop(self, seconds: float) -> None:
        """Takes no more requests and lets the open ones finish, for at most this many seconds.

        Those that are open then end with "abort". Returns when every stream has ended and the engine is closed.
        """
        # TASK 3.6.7: the state first, and wake the loop, which may be waiting. `_is_over` is set by `serve`.
        # `asyncio.wait_for` gives up after some seconds; then abandon what is open, and wait again.
        if self.state in ("starting", "ready"):
            self.state = "stopping"
        self._wake.set()
        try:
            await asyncio.wait_for(self._is_over.wait(), seconds)
        except asyncio.TimeoutError:
            for stream in list(self._open):
                self.abandon(stream)
            await self._is_over.wait()
        # END TASK
        if hasattr(self, "engine"):  # else it has not opened
            await self.on_worker(self.engine.close)
        self._worker.shutdown()
