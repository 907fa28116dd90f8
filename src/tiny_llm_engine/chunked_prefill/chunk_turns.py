"""What a `ChunkedPrefillScheduler` does besides its three phases: requests come and go, prompts take turns."""

from collections.abc import Callable
from typing import Any

from ..events import Event, Listener
from ..request_life import Completion
from .chunk_sizes import Chunker


class ChunkTurns:
    """Requests of a scheduler from their arrival to their results, and the prompt whose turn it is.

    Args:
        batch: the running requests, a `Batch`.
        turns: chooses the next prompt, see `Turns`.
        chunker_step: the size of a chunk by a chunker, see the function of this name.
        prefill_step, max_seq_len, chunker, metrics, on_event: see `ChunkedPrefillScheduler`.
    """

    def __init__(
        self,
        batch: Any,
        turns: Any,
        chunker_step: Callable[..., int],
        *,
        prefill_step: int,
        max_seq_len: int,
        chunker: Chunker | None,
        metrics: Any,
        on_event: Listener | None,
    ):
        self.batch, self.turns, self._chunker_step = batch, turns, chunker_step
        self.prefill_step, self.max_seq_len = prefill_step, max_seq_len
        self.chunker, self.metrics, self.on_event = chunker, metrics, on_event
        self.pending: Any = None  # the request whose prompt is being computed, or waits for a slot
        self.is_closed = False
        self._requests: list[Any] = []  # all that were added and not collected yet

    def add(self, request: Any) -> None:
        """Adds a request to the queue. One that cannot be served has ended already, and leaves at its turn.

        Raises:
            RuntimeError: the scheduler is closed.
        """
        if self.is_closed:
            raise RuntimeError("this scheduler is closed: make a new one for more requests")
        request.set_max_seq_len(self.max_seq_len)
        self._requests.append(request)
        self.turns.queue.add(request)
        self.batch.emit("arrive", request)

    def collect_results(self) -> list[Completion]:
        """Returns the results of requests that ended since the last call, in the order of `prompt_idx`."""
        ended = [request for request in self._requests if request.is_done]
        self._requests = [request for request in self._requests if not request.is_done]
        return sorted(map(Completion.of, ended), key=lambda completion: completion.prompt_idx)

    def choose_pending(self) -> None:
        """Sets `pending` to the prompt whose turn it is; requests that have ended leave."""
        while self._take_turn():
            pass

    def _take_turn(self) -> bool:
        """Returns whether `pending` has changed: the new one may have to make room in its turn."""
        before, resumes = self.pending, len(self.turns.paused) > 0
        if before is not None and before.is_done:
            self.leave(before)
            return True
        self.pending = self.turns.choose(before, self.batch.requests, len(self.batch.slots))
        if before is not None and self.pending is not before:
            self.batch.emit("pause", before)
        elif before is None and resumes and self.pending is not None:
            self.batch.emit("resume", self.pending)
        while self.turns.ended:
            self.leave(self.turns.ended.pop(0))
        return self.pending is not before

    def choose_step(self, request: Any) -> int:
        """The maximum number of tokens in the next chunk; 0 if it has to wait."""
        running, slots = len(self.batch.running), len(self.batch.slots)
        if self.turns.waits_for_peak(request, running / slots, self.prefill_step):
            return 0
        if self.chunker is None:
            return self.prefill_step
        # The caches have room for the tokens of the free slots, and of one prompt besides them.
        held = request.offset + sum(one.offset for one in self.turns.paused.requests)
        memory = (slots + 1 - running) * self.max_seq_len - held
        return self._chunker_step(self.chunker, request.prompt_left, memory, running, slots)

    def compute_chunk(self, request: Any, step: int) -> None:
        """Computes a chunk of at most `step` tokens. Emits "prefill" before a prompt's first chunk."""
        if request.offset == 0:
            self.batch.emit("prefill", request)
        if not request.is_done:  # a listener may have aborted it
            request.prefill_max_step = step
            self.batch.compute_prompt(request, request.try_prefill)

    def leave(self, request: Any) -> None:
        """Removes a request from the prefills: it is in the batch now, or has ended."""
        self.pending = None if self.pending is request else self.pending
        self.turns.paused.forget(request)
        if request.is_done:
            self.batch.emit("finish", request)

    def _drop_ended(self) -> None:
        """Removes requests that ended between two steps, so that their slots are free in this step."""
        self.batch.remove_ended()
        for request in [self.pending, *self.turns.paused.requests]:
            if request is not None and request.is_done:
                self.leave(request)

    def hear(self, event: Event) -> None:
        """Passes the times of chunks to the chunker, and every event to the metrics and to `on_event`."""
        for part in event.parts:
            if self.chunker is not None and part.kind == "chunk":
                self.chunker.observe(part.tokens, event.seconds)
        if self.metrics is not None:
            self.metrics.on_event(event)
        if self.on_event is not None:
            self.on_event(event)
