"""Batches without chunks, told as if they had some: so that a run of Day 2.6 is recorded like one of Day 2.7."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any


class PlainBatch:
    """Passes events of `batch_generate` on, with those that chunked prefill tells besides: arrivals, chunks, decodes.

    A prompt is one chunk, from its "prefill" to its first "token". A decode step begins with whatever was told before
    its first token: between the two there is nothing else to do.

    Args:
        listener: who hears of all of it.
        requests: all of them; they arrive when the first thing is told.
    """

    def __init__(self, listener: Callable[[Any], object], requests: list[Any]):
        self.listener, self._requests = listener, requests
        self._last: Any = None  # the event before
        self._prefill: Any = None  # the prompt that is computed now
        self._begin = 0.0  # of the decode step that goes on
        self._row: list[Any] = []  # who has a token of it
        self._running: set[int] = set()

    def __call__(self, event: Any) -> None:
        if self._last is None:
            for request in self._requests:
                self.listener(replace(event, kind="arrive", request=request, slot=None))
        is_decode = event.kind == "token" and event.slot is not None
        if not is_decode or event.request in self._row:
            self.end_step()
        if is_decode:
            self._decodes(event)
        elif event.kind == "token":
            self._ends_prompt(event)
        self._prefill = event if event.kind == "prefill" else None
        self._last = event
        self.listener(event)
        if event.kind == "finish":
            self._running.discard(event.request.prompt_idx)

    def end_step(self) -> None:
        """The decode step is over: another one, or something else, begins; or the run has ended."""
        if self._row:
            self.listener(
                replace(self._last, kind="decode", request=None, start=self._begin, tokens=len(self._row))
            )
        self._row = []

    def _decodes(self, event: Any) -> None:
        if not self._row:
            self._begin = self._last.time
        self._row.append(event.request)
        self._running.add(event.request.prompt_idx)

    def _ends_prompt(self, event: Any) -> None:
        if self._prefill is not None:
            tokens, running = len(event.request.prompt_tokens), len(self._running)
            self.listener(
                replace(event, kind="chunk", start=self._prefill.time, tokens=tokens, running=running)
            )
