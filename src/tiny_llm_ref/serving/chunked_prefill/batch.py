"""The running requests: one slot each, and a shared cache per layer."""

import time
from collections.abc import Callable
from contextlib import suppress

from tiny_llm_engine.chunked_prefill.serving_model import BatchCache, ServingModel
from tiny_llm_engine.events import Event, Listener, Part
from tiny_llm_engine.request_life import model_call

from .request import Request


class Batch:
    """Up to `batch_size` running requests, which share each step of the model.

    Args:
        model: runs the steps.
        batch_size: number of slots.
        max_seq_len: capacity of a slot in tokens, prompt and answer together.
        clock: returns seconds, for the times of events.
        on_event: called with each event. It may call `abort` of any request, which gets no token after that.

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
    def requests(self) -> list[Request]:
        """The running requests."""
        return [request for request in self.slots if request]

    @property
    def free_slot(self) -> int | None:
        """The lowest free slot, which keeps the used slots together; None when all are taken."""
        return next((slot for slot, request in enumerate(self.slots) if request is None), None)

    def emit(self, kind: str, request: Request, slot: int | None = None) -> None:
        """Emits an event of one request."""
        self.on_event(Event(kind, self.clock(), request, slot))

    def prefill_and_place(self, request: Request) -> None:
        """Prefills a request and gives it a free slot, unless it has ended by then.

        Emits "prefill" before its step; "finish", with the slot None, when it has ended.
        """
        # TASK 2.6.7: prefill; if the request has not ended, give it a slot.
        # It may have ended before (rejected, or aborted while it waited), and it may end with its first token.
        if not request.is_done:
            self.emit("prefill", request)
        if not request.is_done:
            self.compute_prompt(request, request.prefill)
        if request.is_done:
            self.emit("finish", request)
            return
        self.place(request)

    def compute_prompt(self, request: Request, compute: Callable[[], object]) -> None:
        """Calls `compute()` for a prompt. Emits "step" and, if it gave a token, "token". Given."""
        context, running, start = request.offset, len(self.running), self.clock()
        compute()
        chunk = Part("chunk", (request,), request.offset - context, context, running)
        self.on_event(Event("step", self.clock(), start=start, parts=(chunk,)))
        if request.is_prefill_done and request.finish_reason != "abort":
            self.emit("token", request)

    def place(self, request: Request) -> None:
        """Moves a request whose prompt was computed into the lowest free slot."""
        # TASK 2.6.7: copy each layer's cache into the same slot, and release the request's own.
        slot = self.slots.index(None)
        for own, shared in zip(request.kv_cache, self.kv_cache, strict=True):
            shared.add_request(own, slot)
        request.release()
        self.slots[slot] = request

    def take_slot(self, request: Request) -> None:
        """As `place`, but if it fails, ends the request and removes it from the batch. Given.

        Raises:
            What `place` has raised.
        """
        slot = self.slots.index(None)
        try:
            with model_call(request):
                self.place(request)
        except BaseException:
            for layer in self.kv_cache:
                with suppress(Exception):  # a layer that did not get it has nothing to remove
                    layer.remove_request(slot)
            raise

    def decode(self) -> None:
        """Runs one step: one new token per running request. Emits "step", then "token" for each."""
        start, running, requests = self.clock(), self.running, self.requests
        # TASK 2.6.8: one entry per slot, None for an idle one; each new token goes to the request of its slot.
        # The cache holds `offset` tokens of a request; this step adds its `next_token`. Put the call of the model into
        # `with model_call(…):`, as in Task 2.6.4, with all of `requests`.
        tokens = [request.next_token if request else None for request in self.slots]
        offsets = [request.offset if request else 0 for request in self.slots]
        sampling = [request.sampling if request else None for request in self.slots]
        with model_call(*requests):
            chosen = self.model.decode(tokens, offsets, self.kv_cache, sampling=sampling)
        for request, token in zip(self.slots, chosen, strict=True):
            if request is not None and token is not None:
                request.decode_done(token)
        # END TASK
        decode = Part("decode", tuple(requests), len(requests))
        self.on_event(Event("step", self.clock(), start=start, parts=(decode,)))
        for slot, request in zip(running, requests, strict=True):
            if request.finish_reason != "abort":
                self.emit("token", request, slot)

    def remove_ended(self) -> None:
        """Frees the slots of requests that have ended. Emits "finish" for each."""
        for slot, request in enumerate(self.slots):
            if request is not None and request.is_done:
                self.slots[slot] = None
                for layer in self.kv_cache:
                    layer.remove_request(slot)
                self.emit("finish", request, slot)

    def close(self) -> None:
        """Releases the caches, once. A request that still runs is aborted."""
        for request in self.requests:
            request.abort()
        self.slots[:] = [None] * len(self.slots)
        released, self.kv_cache = self.kv_cache, []
        for layer in released:
            layer.release()
