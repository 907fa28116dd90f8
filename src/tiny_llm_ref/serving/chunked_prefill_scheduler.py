"""Chunked prefill: one chunk of a prompt, then a token for everyone who runs, and again (Agrawal et al., 2023)."""

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

from .batch import Batch
from .chunk_size import select_optimal_chunk_size
from .completion import Completion
from .events import Event, Listener
from .model import ServingModel
from .paused_prefills import PausedPrefills
from .request import Request, model_call
from .request_queue import FifoQueue, RequestQueue


class Chunker(Protocol):
    """Who chooses the size of every chunk; `AdaptiveChunker` is one."""

    sizes: tuple[int, ...]

    def observe(self, chunk_size: int, seconds: float) -> None: ...

    def select_chunk_size(self, base_chunk_size: int, decode_pressure: float) -> int: ...


class ChunkedPrefillScheduler:
    """Serves requests by steps. Between two tokens of a running request at most one chunk of a prompt is computed.

    Args:
        model: what runs the steps.
        batch_size: how many requests decode at the same time.
        prefill_step: tokens of a chunk, at most; a `chunker` takes its place.
        max_seq_len: tokens of a slot, prompt and answer together.
        queue: who waits; `FifoQueue` when None.
        reserved_decode_slots: so many slots no batch request takes: they are for interactive ones.
        pause_prefill: a prompt that is shorter than what is left of the current one goes first.
        peak_load: the share of slots that run, above 0 and at most 1, from which on a long prompt waits; None is never.
        patience: so many times a prompt makes room for a shorter one, and so many steps it waits at peak load.
        clock: seconds.
        chunker: chooses every chunk's size, by what chunks have cost so far.
        metrics: its `on_event` is called with each event, as that of `ChunkedPrefillMetrics`.
        on_event: called with each event. It may call `abort` of any request.

    What the model or `on_event` raises is raised by `step`. It ends the requests that were in the step of the model,
    and no others: the next step serves them.

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
        queue: RequestQueue | None = None,
        reserved_decode_slots: int = 0,
        pause_prefill: bool = False,
        peak_load: float | None = None,
        patience: int = 8,
        clock: Callable[[], float] = time.perf_counter,
        chunker: Chunker | None = None,
        metrics: Any = None,
        on_event: Listener | None = None,
    ):
        _check(batch_size, prefill_step, reserved_decode_slots, peak_load, patience)
        self.batch = Batch(model, batch_size, max_seq_len, clock=clock, on_event=self._emit)
        self.prefill_step, self.max_seq_len, self.clock = prefill_step, max_seq_len, clock
        self.queue: RequestQueue = FifoQueue() if queue is None else queue
        self.reserved_decode_slots, self.pause_prefill = reserved_decode_slots, pause_prefill
        self.peak_load, self.patience = peak_load, patience
        self.chunker, self.metrics, self.on_event = chunker, metrics, on_event
        # The prompt that is being computed, or that is finished and waits for a slot.
        self.pending: Request | None = None
        self.paused = PausedPrefills(patience)
        self.is_closed = False
        self._waited = 0  # steps in a row, at peak load
        self._requests: list[Request] = []  # all that were added and not yet collected

    def add(self, request: Request) -> None:
        """Lets a request wait. One that cannot be served has ended with its reason; it leaves when its turn comes.

        Raises:
            RuntimeError: the scheduler is closed.
        """
        if self.is_closed:
            raise RuntimeError("this scheduler is closed: make a new one for more requests")
        request.set_max_seq_len(self.max_seq_len)
        self._requests.append(request)
        self.queue.add(request)
        self.batch.emit("arrive", request)

    def has_work_remaining(self) -> bool:
        """Whether a request waits, is being prefilled, or runs."""
        # TASK 2.7.3: four places where a request can be. A lone prompt of many chunks is in none but `pending`.
        return bool(self.pending or self.paused or len(self.queue) or self.batch.running)

    def step(self) -> bool:
        """At most one chunk of a prompt, then one token for every running request.

        Returns:
            Whether anything was done.
        """
        self._drop_ended()
        # TASK 2.7.3: the three phases, each of them once and in every step, whatever the others have done.
        # A prompt that is finished here gets its slot at once, and decodes in this very step.
        prefilled = self.handle_prefill_phase()
        moved = self.move_prefill_to_decode()
        return self.handle_decode_phase() or prefilled or moved

    def handle_prefill_phase(self) -> bool:
        """Computes one chunk of one prompt. Returns whether there was one to compute."""
        self._choose_pending()
        # TASK 2.7.3: nothing is computed when nobody waits, or while a finished prompt waits for a slot.
        # `choose_step` says how large the chunk may be, 0 when it has to wait. `compute_chunk` does the rest.
        if self.pending is None or self.pending.is_prefill_done:
            return False
        step = self.choose_step(self.pending)
        if step:
            self.compute_chunk(self.pending, step)
        return step > 0

    def move_prefill_to_decode(self) -> bool:
        """Gives a finished prompt its slot. Returns whether `pending` has left."""
        # TASK 2.7.3: not before the whole prompt is computed; and while no slot is free, it stays where it is.
        # One that has ended with its first token needs no slot. `leave` makes `pending` free for the next prompt.
        request = self.pending
        if request is None or not request.is_prefill_done:
            return False
        if not request.is_done:
            if self.batch.free_slot is None:
                return False
            self.take_slot(request)
        self.leave(request)
        return True

    def handle_decode_phase(self) -> bool:
        """One token for every running request. Returns whether one runs."""
        # TASK 2.7.3: `batch.decode`, if anyone runs. Whoever has ended leaves the batch, before the step and after it.
        self.batch.remove_ended()
        if not self.batch.running:
            return False
        self.batch.decode()
        self.batch.remove_ended()
        return True

    def collect_results(self) -> list[Completion]:
        """What became of the requests that have ended since the last call, in the order of `prompt_idx`."""
        ended = [request for request in self._requests if request.is_done]
        self._requests = [request for request in self._requests if not request.is_done]
        return sorted(map(Completion.of, ended), key=lambda completion: completion.prompt_idx)

    def close(self) -> None:
        """Ends every request that has not ended, and releases every cache."""
        self.is_closed = True
        self.batch.close()
        for request in self._requests:
            request.abort()

    # Whose turn it is.

    def _choose_pending(self) -> None:
        """The prompt that is computed next: the current one, one that made room, or the first that waits. Given."""
        while True:
            if self.pending is None:
                self._resume_or_start()
            if self.pending is None:
                return
            if not self.pending.is_done:
                self.make_room()
            if not self.pending.is_done:
                return
            self.leave(self.pending)

    def _resume_or_start(self) -> None:
        if self.paused:
            self.pending = self.paused.resume()
            self.batch.emit("resume", self.pending)
        else:
            self.pending = self.queue.schedule_next(interactive_only=self.keeps_slots())

    def keeps_slots(self) -> bool:
        """Whether batch requests have all the slots that they may take."""
        if not self.reserved_decode_slots:
            return False
        # TASK 2.7.9: `reserved_decode_slots` are not for them. One whose prefill has begun will need a slot, too.
        begun = [*self.batch.slots, self.pending, *self.paused.requests]
        taken = sum(request is not None and request.priority == "batch" for request in begun)
        return taken >= len(self.batch.slots) - self.reserved_decode_slots

    def make_room(self) -> None:
        """Lets the shortest prompt that waits go before the current one, if it is shorter than what is left of that."""
        if not self.pause_prefill:
            return
        # TASK 2.7.9: not if patience forbids it. `next_shorter` finds the other; of a finished prompt nothing is left.
        # An interactive prompt makes no room for a batch one. The paused one keeps its cache and its offset. Tell
        # "pause" of it last: whoever hears that may abort either of the two.
        request = self.pending
        if not self.paused.may_pause(request):
            return
        only = request.priority == "interactive" or self.keeps_slots()
        shorter = self.next_shorter(request.prompt_left, interactive_only=only)
        if shorter is not None:
            self.paused.pause(request)
            self.pending = shorter
            self.batch.emit("pause", request)

    def next_shorter(self, tokens: int, interactive_only: bool) -> Request | None:
        """Takes the shortest prompt that waits out of the queue, if it has fewer than so many tokens. Given."""
        while (request := self.queue.shorter_than(tokens, interactive_only)) is not None:
            if not request.is_done:
                return request
            self.leave(request)  # it was refused, or aborted while it waited
        return None

    # How large its chunk is, and what it costs.

    def choose_step(self, request: Request) -> int:
        """Tokens of the next chunk, at most; 0 when it has to wait. Given."""
        if self.waits_for_peak(request):
            return 0
        if self.chunker is None:
            return self.prefill_step
        running, slots = len(self.batch.running), len(self.batch.slots)
        base = select_optimal_chunk_size(
            request.prompt_left, self.room(request), running, slots, self.chunker.sizes
        )
        if not base and not running:
            base = self.chunker.sizes[0]  # nobody will end, so waiting would be for ever
        return base and self.chunker.select_chunk_size(base, running / slots)

    def room(self, request: Request) -> int:
        """Tokens that the caches may still take: there are the slots, and one prompt more. Given."""
        free = len(self.batch.slots) + 1 - len(self.batch.running)
        return free * self.max_seq_len - request.offset - sum(one.offset for one in self.paused.requests)

    def waits_for_peak(self, request: Request) -> bool:
        """Whether a long prompt waits, because so many requests run."""
        if self.peak_load is None:
            return False
        # TASK 2.7.9: long is what needs more than one chunk. It waits `patience` steps, then gets one chunk; and again.
        load = len(self.batch.running) / len(self.batch.slots)
        waits = (
            load >= self.peak_load
            and request.prompt_left > self.prefill_step
            and self._waited < self.patience
        )
        self._waited = self._waited + 1 if waits else 0
        return waits

    def compute_chunk(self, request: Request, step: int) -> None:
        """One chunk of at most `step` tokens, after the "prefill" event of the first. Given."""
        if request.offset == 0:
            self.batch.emit("prefill", request)
        if not request.is_done:  # whoever heard of it may have aborted it
            request.prefill_max_step = step
            self.batch.compute_prompt(request, request.try_prefill)

    def take_slot(self, request: Request) -> None:
        """Moves a finished prompt into the lowest free slot. Given."""
        slot = self.batch.free_slot
        try:
            with model_call(request):
                self.batch.place(request)
        except BaseException:
            for layer in self.batch.kv_cache:
                with suppress(Exception):  # a layer that has not got it holds nothing to remove
                    layer.remove_request(slot)
            raise

    def leave(self, request: Request) -> None:
        """A request is in the batch now, or has ended: it is no prefill any more. Given."""
        self.pending = None if self.pending is request else self.pending
        self.paused.forget(request)
        if request.is_done:
            self.batch.emit("finish", request)

    def _drop_ended(self) -> None:
        """Whoever was aborted between two steps leaves now, so that the slot is free in this one."""
        self.batch.remove_ended()
        for request in [self.pending, *self.paused.requests]:
            if request is not None and request.is_done:
                self.leave(request)

    def _emit(self, event: Event) -> None:
        """Passes an event on: to the chunker what a chunk has cost, to the metrics and to `on_event` everything."""
        for part in event.parts:
            if self.chunker is not None and part.kind == "chunk":
                self.chunker.observe(part.tokens, event.seconds)
        if self.metrics is not None:
            self.metrics.on_event(event)
        if self.on_event is not None:
            self.on_event(event)


def _check(batch_size: int, prefill_step: int, reserved: int, peak_load: float | None, patience: int) -> None:
    """The numbers that no scheduler can work with. Given."""
    if prefill_step < 1:
        raise ValueError(f"prefill_step is {prefill_step}: a chunk has at least 1 token")
    if not 0 <= reserved < max(batch_size, 1):
        raise ValueError(f"reserved_decode_slots is {reserved}: give 0 to {batch_size - 1}, fewer than slots")
    if peak_load is not None and not 0 < peak_load <= 1:
        raise ValueError(f"peak_load is {peak_load}: give a share above 0 and at most 1, or None")
    if patience < 1:
        raise ValueError(f"patience is {patience}: a prompt makes room at least once")
