"""The running requests: one slot each, and caches that hold them all side by side."""

import time
from collections.abc import Callable

from .events import Event, Listener
from .model import BatchCache, ServingModel
from .request import Request


class Batch:
    """Up to `batch_size` running requests, which share each step of the model.

    Args:
        model: what runs the steps.
        batch_size: how many slots.
        max_seq_len: tokens of a slot, prompt and answer together.
        clock: seconds, for the events.
        on_event: is told of each event. It may call `abort` of any request, which gets no token after that.

    Raises:
        ValueError: there is no slot.
    """

    def __init__(
        self,
        model: ServingModel,
        batch_size: int,
        max_seq_len: int,
        *,
        clock: Callable[[], float] = time.perf_counter,
        on_event: Listener = lambda event: None,
    ):
        if batch_size < 1:
            raise ValueError(f"batch_size is {batch_size}: there must be at least 1 slot")
        self.model, self.clock, self.on_event = model, clock, on_event
        self.slots: list[Request | None] = [None] * batch_size
        self.kv_cache: list[BatchCache] = model.create_batch_cache(batch_size, max_seq_len)

    @property
    def running(self) -> list[int]:
        """The slots in use."""
        return [slot for slot, request in enumerate(self.slots) if request]

    @property
    def free_slot(self) -> int | None:
        """The lowest free slot, so that the running ones stay together; None when all are taken."""
        return next((slot for slot, request in enumerate(self.slots) if request is None), None)

    def tell(self, kind: str, request: Request, slot: int | None = None) -> None:
        self.on_event(Event(kind, self.clock(), request, slot))

    def admit(self, request: Request) -> None:
        """Prefills a request and gives it a free slot, unless it has ended by then.

        Tells "prefill" before the step and "token" after it; or "finish", with the slot None, when it has ended.
        """
        # TASK 2.6.7: prefill; if the request lives on, give it a slot.
        # It may have ended before (refused, or aborted while it waited), and it may end with its first token.
        if not request.is_done:
            self.tell("prefill", request)
        if not request.is_done:
            request.prefill()
            self.tell("token", request)
        if request.is_done:
            self.tell("finish", request)
            return
        self.place(request)

    def place(self, request: Request) -> None:
        """Moves a request whose prompt was computed into the lowest free slot."""
        # TASK 2.6.7: copy each layer's cache into the same slot, and release the request's own.
        slot = self.free_slot
        for own, shared in zip(request.kv_cache, self.kv_cache, strict=True):
            shared.add_request(own, slot)
        request.release()
        self.slots[slot] = request

    def decode(self) -> None:
        """One step: one new token for every running request. Tells "token" of each."""
        # TASK 2.6.8: a row for every slot, [] for an idle one; give each new token to the request that it belongs to.
        # The cache holds `offset` tokens of a request; its `next_token` is what this step adds. Whoever hears of one
        # token may abort the request of the next.
        rows = self.running
        tokens = [[request.next_token] if request else [] for request in self.slots]
        offsets = [request.offset if request else 0 for request in self.slots]
        sampling = [self.slots[slot].sampling for slot in rows]
        chosen = self.model.step(tokens, offsets, self.kv_cache, sample_rows=rows, sampling=sampling)
        for slot, token in zip(rows, chosen, strict=True):
            if not self.slots[slot].is_done:
                self.slots[slot].decode_done(token)
                self.tell("token", self.slots[slot], slot)

    def remove_ended(self) -> None:
        """Frees the slots of requests that have ended. Tells "finish" of each."""
        for slot in self.running:
            if self.slots[slot].is_done:
                request, self.slots[slot] = self.slots[slot], None
                for layer in self.kv_cache:
                    layer.remove_request(slot)
                self.tell("finish", request, slot)

    def close(self) -> None:
        """Releases the caches. A request that still runs is aborted."""
        for slot in self.running:
            self.slots[slot].abort()
            self.slots[slot] = None
        for layer in self.kv_cache:
            layer.release()
