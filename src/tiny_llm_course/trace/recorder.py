"""Turns the events of a scheduler into a trace."""

from collections.abc import Sequence
from typing import Any

from tiny_llm_engine.events import number_of
from tiny_llm_engine.models.files import Json
from tiny_llm_engine.solutions.solution_types import AnswerSequence, Event, Part, Request

from .trace import WHOLE, Lane, Span, Trace, stalls


def computed_of(request: Any) -> int:
    """Tokens of it whose keys and values are in a cache or in its blocks."""
    return request.offset if hasattr(request, "offset") else request.num_computed


class Recorder:
    """A listener that records what `batch_generate` or a `ChunkedPrefillScheduler` does.

    Args:
        prefill_step: prompt tokens agreed between two decode steps.
        names: names of the requests in charts and tables, by number.
    """

    def __init__(self, prefill_step: int, names: Sequence[str] = ()):
        self.prefill_step, self.names = prefill_step, names
        self.stall_steps = self.steps = 0
        self._begin: float | None = None
        self._now = 0.0
        self._lanes: dict[int, Lane] = {}
        self._spans: list[Span] = []
        self._since: dict[int, tuple[str, float]] = {}  # why a request waits, and since when
        self._chunks: list[tuple[float, int]] = []  # start and tokens; running requests wait for them

    def __call__(self, event: Event) -> None:
        self._now = event.time - self.begin(event.time)
        getattr(self, f"_{event.kind}")(event)

    def begin(self, time: float) -> float:
        """Set and return the origin of all times; without this call it is the first event."""
        self._begin = time if self._begin is None else self._begin
        return self._begin

    def arrive(self, request: Request | AnswerSequence, time: float) -> None:
        """Record that a request starts to wait; a later "arrive" event of it is ignored."""
        time -= self.begin(time)
        number = number_of(request)
        if number not in self._lanes:
            name = self.names[number] if number < len(self.names) else ""
            self._lanes[number] = Lane(
                time, request=number, prompt_tokens=len(request.prompt_tokens), name=name or str(number)
            )
            self._since[number] = ("queued", time)

    def trace(self, title: str = "", chunk: int = WHOLE, provenance: Json | None = None) -> Trace:
        """The trace recorded so far."""
        lanes = [self._lanes[number] for number in sorted(self._lanes)]
        spans, end = list(self._spans), self._now
        return Trace(title, lanes, spans, chunk, self.prefill_step, self.stall_steps, end, provenance or {})

    def _arrive(self, event: Event) -> None:
        self.arrive(event.request, event.time)

    def _prefill(self, event: Event) -> None:
        self._ends_waiting(number_of(event.request))

    _resume = _prefill

    def _pause(self, event: Event) -> None:
        # One that makes room before its own first chunk is still queued.
        self._since.setdefault(number_of(event.request), ("paused", self._now))

    _preempt = _pause

    def _step(self, event: Event) -> None:
        self.steps += 1
        for part in event.parts:
            getattr(self, f"_{part.kind}")(part, (event.start or 0.0) - (self._begin or 0.0))

    def _chunk(self, part: Part, start: float) -> None:
        [request] = part.requests
        self._ends_waiting(number_of(request), start)
        self._spans.append(Span(number_of(request), "chunk", start, self._now, part.tokens, part.context))
        if part.running:
            self.stall_steps -= self._stalls()
            self._chunks.append((start, part.tokens))
            self.stall_steps += self._stalls()

    def _stalls(self) -> int:
        """Stalls in the current wait."""
        return stalls(sum(tokens for _, tokens in self._chunks), self.prefill_step)

    def _token(self, event: Event) -> None:
        lane = self._lanes[number_of(event.request)]
        # The event of an end token adds nothing to the request's tokens.
        if len(event.request.tokens) > len(lane.token_times):
            lane.add_token(self._now)

    def _decode(self, part: Part, start: float) -> None:
        self._waits(part, start)
        for request in part.requests:
            span = Span(number_of(request), "decode", start, self._now, part.tokens, computed_of(request))
            self._spans.append(span)

    def _waits(self, part: Part, end: float) -> None:
        """End the wait for chunks of requests that had a token before, as a decode begins."""
        if not self._chunks:
            return
        start, tokens = self._chunks[0][0], sum(tokens for _, tokens in self._chunks)
        kind = "stall" if self._stalls() else "waiting"
        for request in part.requests:
            lane = self._lanes[number_of(request)]
            # Not in a step that has chunks and decodes.
            if lane.token_times and lane.token_times[0] <= start < end:
                self._spans.append(Span(lane.request, kind, start, end, tokens))
        self._chunks.clear()

    def _finish(self, event: Event) -> None:
        number = number_of(event.request)
        self._ends_waiting(number)
        lane = self._lanes[number]
        lane.finished_time, lane.reason = self._now, event.request.finish_reason

    def _ends_waiting(self, number: int, end: float | None = None) -> None:
        kind, start = self._since.pop(number, ("", 0.0))
        stop = self._now if end is None else end
        if kind and stop > start:
            self._spans.append(Span(number, kind, start, stop))
