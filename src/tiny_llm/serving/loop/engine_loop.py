"""The loop around a serving engine: many readers on an asyncio event loop, one thread that owns the device.

Knows requests, streams and steps. Knows no HTTP, no text, no arrays: `tiny_llm_server` is one user of it.
"""

import asyncio
from collections import abc

from tiny_llm_engine.loop_state import LoopState, NotServing, Piece, QueueFull, StreamedRequest

from .request_stream import RequestStream


class EngineLoop(LoopState):
    """Serves requests of many readers with one engine.

    The event loop's thread submits, reads and cancels, and never touches the engine. One worker thread owns the engine
    and the device: it opens the engine, and then runs one `turn` after the other. The two hand over between two turns.

    `state` is "starting", "ready", "stopping", "stopped" or "dead". `LoopState`, given, has the rest of the state. The
    event loop's thread has the streams that are `_open`, in the order of their arrival, those that have `_arrived` and
    those that are `_abandoned` since the last turn, and the events `_wake` and `_is_over`. The worker thread has the
    streams that are `_served`, and `_failures`, the failed steps in a row.

    Args:
        max_open: sequences that wait or run at the same time.
        max_failures: number of failed steps in a row after which the engine is dead.
        on_failure: called on the worker thread with what a step has raised.
        clock: seconds.

    Raises:
        ValueError: `max_open` is below 1.
    """

    # Admission, on the event loop's thread.

    def submit(self, requests: abc.Sequence[StreamedRequest]) -> RequestStream:
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
        raise NotImplementedError("week 3 day 6 task 2: EngineLoop.submit")

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
        raise NotImplementedError("week 3 day 6 task 3: EngineLoop.turn")

    def try_step(self) -> None:
        """One step of the engine. A step that fails has ended its own requests, and the others go on.

        Raises:
            Exception: what the last of `max_failures` failing steps in a row has raised.
        """
        # TASK 3.6.4: a good step forgets the failures before it. Report every failure (`on_failure`).
        # An engine that only fails is dead: a device that is gone does not come back by trying.
        raise NotImplementedError("week 3 day 6 task 4: EngineLoop.try_step")

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
        raise NotImplementedError("week 3 day 6 task 5: EngineLoop.serve")

    # Ends, on the event loop's thread.

    def abandon(self, stream: RequestStream) -> None:
        """The reader of a stream has left: its request ends before the next step."""
        # TASK 3.6.6: a step may be running, and it writes into the blocks of this request: only hand over.
        # The engine's thread aborts it. A stream that is not open has nothing to abandon.
        raise NotImplementedError("week 3 day 6 task 6: EngineLoop.abandon")

    async def stop(self, seconds: float) -> None:
        """Takes no more requests and lets the open ones finish, for at most this many seconds.

        Those that are open then end with "abort". Returns when every stream has ended and the engine is closed.
        """
        # TASK 3.6.7: the state first, and wake the loop, which may be waiting. `_is_over` is set by `serve`.
        # `asyncio.wait_for` gives up after some seconds; then abandon what is open, and wait again.
        raise NotImplementedError("week 3 day 6 task 7: EngineLoop.stop")
        # END TASK
        if hasattr(self, "engine"):  # else it has not opened
            await self.on_worker(self.engine.close)
        self._worker.shutdown()
