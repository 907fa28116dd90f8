"""Admission past a request without room, if that does not delay it (backfilling; Lifka, 1995)."""

import math
from collections.abc import Callable
from typing import Protocol

from tiny_llm_engine.admission import Admission, Served, ServingState, WaitingLine

LOOK = 32  # requests that are tried past one without room, until somebody leaves


class AgedLine(WaitingLine[Served], Protocol[Served]):
    """What is asked of an `AgedQueue`."""

    def key(self, sequence: Served) -> float: ...

    def first(self) -> Served | None: ...

    def shortest(self) -> Served | None: ...

    def take_shortest(self) -> Served | None: ...

    def smallest(self, count: int) -> list[Served]: ...


class Backfill(Admission[Served]):
    """Admits requests in the order of an `AgedQueue`.

    Other requests may pass one without room, but only those that will have ended by the time at which it gets its
    room. So no room is left idle, and nobody waits for ever: the limits on the answers (`max_tokens`) say when running
    requests leave at the latest.

    Args:
        state: see `Admission`.
        queue: the requests that wait, instead of the state's own queue.
        step_tokens: tokens of prompts in a step.
        may_begin: whether a request may begin now, besides room.
    """

    def __init__(
        self,
        state: ServingState[Served],
        queue: AgedLine[Served],
        *,
        step_tokens: int,
        may_begin: Callable[[Served], bool],
    ):
        super().__init__(state)
        self.queue = self.aged = queue
        self.step_tokens, self.may_begin = step_tokens, may_begin
        self.blocked: Served | None = None  # the first one without room
        self._free = 0  # blocks that were free when it had none

    def add(self, sequence: Served, parent: Served | None = None) -> None:
        """Queues a request. A child has waited as long as its parent, which is what its key counts."""
        self.aged.add(sequence)

    def put_back(self, sequence: Served) -> None:
        """Lets a preempted request wait again."""
        self.aged.add(sequence)
        self.is_full = False

    def smallest(self, count: int) -> list[Served]:
        """The next requests that wait, in their order, those without room included."""
        found = [*self.returned, *self.aged.smallest(count)]
        return sorted((one for one in found if not one.is_done), key=self.aged.key)[:count]

    def admit(self, is_alone: bool, left: int, before: float = math.inf) -> Served | None:
        """The next request that may begin, with its blocks; None if no request may.

        Args:
            is_alone: whether nothing runs.
            left: tokens of the budget.
            before: only requests whose key is smaller.
        """
        if (ready := self._take_ready(left)) is not None:
            return ready
        if not self.is_full or is_alone or self.allocator.num_free > self._free:
            self._retry()
        while (sequence := self._take_next(before)) is not None:
            if self.may_begin(sequence) and self._may_pass(sequence):
                if self._reserve(sequence, is_alone, left):
                    if self._is_held(sequence):
                        continue
                    return self._begun(sequence)
                self._block(sequence)
            self.returned.append(sequence)
        return None

    def admit_short(self, is_alone: bool, left: int) -> Served | None:
        """The shortest interactive request, if all of its prompt fits into `left` tokens and it has room now."""
        while (shortest := self.aged.shortest()) is not None:
            if not shortest.is_done and (shortest.num_uncomputed > left or not self._may_pass(shortest)):
                return None
            self.aged.take_shortest()
            if shortest.is_done:
                self.emit("finish", shortest)
            elif self._reserve(shortest, is_alone, left):
                if not self._is_held(shortest):
                    return self._begun(shortest)
            else:
                self._block(shortest)
                self.returned.append(shortest)
        return None

    def drop_ended(self) -> None:
        """See `Admission.drop_ended`."""
        self._retry()
        super().drop_ended()

    def _retry(self) -> None:
        """Makes all requests that were passed over candidates again."""
        while self.returned:
            self.aged.add(self.returned.popleft())
        self.is_full, self.blocked = False, None

    def _take_next(self, before: float = math.inf) -> Served | None:
        """Takes the next request out of the queue; those that ended while they waited leave."""
        while (first := self.aged.first()) is not None:
            tired = len(self.returned) >= LOOK and not self._is_first(first)
            if not first.is_done and (tired or self.aged.key(first) >= before):
                return None
            self.aged.schedule_next()
            if not first.is_done:
                return first
            self.emit("finish", first)
        return None

    def _block(self, sequence: Served) -> None:
        """Remembers the first request without room."""
        self.is_full, self._free = True, self.allocator.num_free
        if self._is_first(sequence):
            self.blocked = sequence

    def _is_first(self, sequence: Served) -> bool:
        """Whether no request without room comes before this one."""
        return self.blocked is None or self.aged.key(sequence) < self.aged.key(self.blocked)

    def _may_pass(self, sequence: Served) -> bool:
        """Whether a request delays none that waits for room."""
        if self.blocked is None or self._is_first(sequence):
            return True
        return self.steps_left(sequence) <= self.steps_until_room(self.blocked)

    def steps_left(self, sequence: Served) -> int:
        """Steps until a request has ended, at most, if it runs now."""
        chunks = -(-sequence.num_uncomputed // self.step_tokens)
        return chunks + sequence.max_new_tokens - len(sequence.tokens)

    def steps_until_room(self, sequence: Served) -> int:
        """Steps until enough running requests have ended to make room for this one."""
        leaving = sorted(self.running, key=self.steps_left)
        missing = (
            -(-len(sequence.known_tokens) // self.allocator.block_size) + self.allocator.watermark_blocks
        )
        free = self.allocator.num_free
        for index, one in enumerate(leaving):
            free += len(one.block_table.blocks)
            if free >= missing and self.fits_beside(sequence, leaving[index + 1 :]):
                return self.steps_left(one)
        return 0
