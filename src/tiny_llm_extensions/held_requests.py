"""Requests that have their place, and wait until something else has filled their blocks."""

from collections import deque
from collections.abc import Iterator
from typing import Generic, TypeVar

from tiny_llm_engine.admission import ServingState
from tiny_llm_engine.request_life import SequenceState

Served = TypeVar("Served", bound=SequenceState)
Missing = TypeVar("Missing")


class HeldRequests(Generic[Served, Missing]):
    """The common part of each `AdmissionHook`.

    Args:
        state: of the loop; "finish" is the event of a request that ended meanwhile.

    Attributes:
        coming: the requests that wait, with what they wait for.
        ready: those that wait no longer.
    """

    def __init__(self, state: ServingState[Served]):
        self.emit = state.emit
        self.coming: dict[Served, Missing] = {}
        self.ready: deque[Served] = deque()

    def __len__(self) -> int:
        return len(self.coming) + len(self.ready)

    def __iter__(self) -> Iterator[Served]:
        yield from self.coming
        yield from self.ready

    def take_ready(self, most: int) -> Served | None:
        """See `AdmissionHook`."""
        if not self.ready or self.ready[0].num_uncomputed > most:
            return None
        return self.ready.popleft()

    def drop_ended(self) -> bool:
        """See `AdmissionHook`."""
        ended = [sequence for sequence in self if sequence.is_done]
        if ended:
            self.coming = {one: missing for one, missing in self.coming.items() if not one.is_done}
            self.ready = deque(sequence for sequence in self.ready if not sequence.is_done)
        for sequence in ended:
            self.emit("finish", sequence)
        return bool(ended)

    def take_all(self) -> list[Served]:
        """See `AdmissionHook`."""
        taken = list(self)
        self.coming.clear()
        self.ready.clear()
        return taken
