"""Chunked prefill: each step computes one chunk of a prompt and decodes one token per running request.

From Agrawal et al., 2023.
"""

import time
from collections.abc import Callable

from tiny_llm_common.chunk_sizes import Chunker
from tiny_llm_common.events import Event, Listener
from tiny_llm_common.model import ServingModel
from tiny_llm_common.request_life import Completion

from .batch import Batch
from .chunk_size import chunker_step
from .chunked_prefill_metrics import ChunkedPrefillMetrics
from .request import Request
from .turns import Turns


class ChunkedPrefillScheduler:
    """Serves requests in steps, with at most one chunk of a prompt between two tokens of a request.

    Args:
        model: runs the steps.
        batch_size: maximum number of requests that decode at the same time.
        prefill_step: maximum number of tokens in a chunk; not used with a `chunker`.
        max_seq_len: capacity of a slot in tokens, prompt and answer together.
        turns: chooses the prompt that is computed next; first come, first served when None.
        clock: returns seconds.
        chunker: chooses the size of every chunk from the times of earlier ones.
        metrics: its `on_event` is called with each event, such as that of `ChunkedPrefillMetrics`.
        on_event: called with each event. It may call `abort` of any request.

    What the model or `on_event` raises is raised by `step`. A call of the model that fails ends only the requests in it
    (`model_call`); the next step serves the others.

    Raises:
        ValueError: a number is out of range.
    """

    def __init__(
        self,
        model: ServingModel,
        batch_size: int = 5,
        prefill_step: int = 128,
        max_seq_len: int = 512,
        *,
        turns: Turns | None = None,
        clock: Callable[[], float] = time.perf_counter,
        chunker: Chunker | None = None,
        metrics: ChunkedPrefillMetrics | None = None,
        on_event: Listener | None = None,
    ):
        if prefill_step < 1:
            raise ValueError(f"prefill_step is {prefill_step}: a chunk has at least 1 token")
        self.turns = Turns() if turns is None else turns
        self.turns.check_slots(batch_size)
        self.batch = Batch(model, batch_size, max_seq_len, clock=clock, on_event=self._emit)
        self.prefill_step, self.max_seq_len = prefill_step, max_seq_len
        self.chunker, self.metrics, self.on_event = chunker, metrics, on_event
        self.pending: Request | None = None  # the request whose prompt is being computed, or waits for a slot
        self.is_closed = False
        self._requests: list[Request] = []  # all that were added and not collected yet

    def add(self, request: Request) -> None:
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

    def has_work_remaining(self) -> bool:
        """Whether a request waits, is paused, is being prefilled, or runs."""
        # TASK 2.7.3: `turns` holds those that wait or are paused. A single prompt of many chunks is only in `pending`.
        return bool(self.pending or len(self.turns) or self.batch.running)

    def step(self) -> bool:
        """Computes at most one chunk of a prompt, then one token per running request.

        Returns:
            Whether anything was done; if not, no work remains.
        """
        self._drop_ended()
        # TASK 2.7.3: the three phases, each once in every step, whatever the others have done.
        # A prompt that is finished here gets its slot at once, and decodes in the same step.
        prefilled = self.handle_prefill_phase()
        moved = self.move_prefill_to_decode()
        return self.handle_decode_phase() or prefilled or moved

    def handle_prefill_phase(self) -> bool:
        """Computes one chunk of one prompt. Returns whether there was one to compute."""
        self.choose_pending()
        # TASK 2.7.3: compute nothing if there is no pending prompt, or while a finished prompt waits for a slot.
        # `choose_step` gives the maximum size of the chunk, 0 if it has to wait. `compute_chunk` does the rest.
        if self.pending is None or self.pending.is_prefill_done:
            return False
        step = self.choose_step(self.pending)
        if step:
            self.compute_chunk(self.pending, step)
        return step > 0

    def move_prefill_to_decode(self) -> bool:
        """Moves a finished prompt into a slot. Returns whether `pending` has left."""
        # TASK 2.7.3: not before the whole prompt is computed; while no slot is free, it stays pending.
        # A request that ended with its first token needs no slot. `leave` clears `pending` for the next prompt.
        request = self.pending
        if request is None or not request.is_prefill_done:
            return False
        if not request.is_done:
            if self.batch.free_slot is None:
                return False
            self.batch.take_slot(request)
        self.leave(request)
        return True

    def handle_decode_phase(self) -> bool:
        """Decodes one token per running request. Returns whether there was one to decode for."""
        # TASK 2.7.3: `batch.decode`, if a request runs. Requests that have ended leave before the step and after it.
        self.batch.remove_ended()
        if not self.batch.running:
            return False
        self.batch.decode()
        self.batch.remove_ended()
        return True

    def collect_results(self) -> list[Completion]:
        """Returns the results of requests that ended since the last call, in the order of `prompt_idx`."""
        ended = [request for request in self._requests if request.is_done]
        self._requests = [request for request in self._requests if not request.is_done]
        return sorted(map(Completion.of, ended), key=lambda completion: completion.prompt_idx)

    def close(self) -> None:
        """Aborts every request that has not ended, and releases every cache."""
        self.is_closed = True
        self.batch.close()
        for request in self._requests:
            request.abort()

    # Given: the parts of the phases.

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

    def choose_step(self, request: Request) -> int:
        """The maximum number of tokens in the next chunk; 0 if it has to wait."""
        running, slots = len(self.batch.running), len(self.batch.slots)
        if self.turns.waits_for_peak(request, running / slots, self.prefill_step):
            return 0
        if self.chunker is None:
            return self.prefill_step
        # The caches have room for the tokens of the free slots, and of one prompt besides them.
        held = request.offset + sum(one.offset for one in self.turns.paused.requests)
        memory = (slots + 1 - running) * self.max_seq_len - held
        return chunker_step(self.chunker, request.prompt_left, memory, running, slots)

    def compute_chunk(self, request: Request, step: int) -> None:
        """Computes a chunk of at most `step` tokens. Emits "prefill" before a prompt's first chunk."""
        if request.offset == 0:
            self.batch.emit("prefill", request)
        if not request.is_done:  # a listener may have aborted it
            request.prefill_max_step = step
            self.batch.compute_prompt(request, request.try_prefill)

    def leave(self, request: Request) -> None:
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

    def _emit(self, event: Event) -> None:
        """Passes the times of chunks to the chunker, and every event to the metrics and to `on_event`."""
        for part in event.parts:
            if self.chunker is not None and part.kind == "chunk":
                self.chunker.observe(part.tokens, event.seconds)
        if self.metrics is not None:
            self.metrics.on_event(event)
        if self.on_event is not None:
            self.on_event(event)
