"""Waiting requests in the order short first, with ageing, so that no long prompt waits for ever."""

import heapq
from itertools import count

from ..batching.sequence import Sequence


class AgedQueue:
    """A `RequestQueue` that orders requests by the work that is left of their prompts, less what they have waited.

    Waiting ages all requests alike, so their order does not change while they wait, and a heap is enough. A prompt of
    w seconds of work is overtaken by those alone that arrive within w / ageing seconds of it.

    A second heap knows the shortest interactive prompt. Who was taken from one heap is dropped by the other when it
    comes to the front there.

    Args:
        seconds_per_token: work of a token.
        ageing: seconds of work that one second of waiting makes up for.
        batch_delay: seconds by which a batch request counts as arrived later.

    Raises:
        ValueError: a number is out of range.
    """

    def __init__(self, seconds_per_token: float, *, ageing: float = 0.5, batch_delay: float = 10.0):
        if ageing <= 0:
            raise ValueError(f"ageing is {ageing}: give more than 0, or a long prompt may wait for ever")
        if batch_delay < 0:
            raise ValueError(f"batch_delay is {batch_delay}: give 0 seconds or more")
        self.seconds_per_token, self.ageing, self.batch_delay = seconds_per_token, ageing, batch_delay
        self._numbers = count()
        self._waiting: dict[int, Sequence] = {}
        self._by_key: list[tuple[float, int]] = []
        self._by_length: list[tuple[int, int]] = []

    def key(self, sequence: Sequence) -> float:
        """Seconds by which requests are ordered, the smallest first."""
        # TASK 3.5.4: the work that is left, and how late it began to wait, weighted by the ageing. Only differences of
        # keys count, so the time of now is not needed. A preempted request has waited for its turn before: no work.
        raise NotImplementedError("week 3 day 5 task 4: AgedQueue.key")

    def add(self, request: Sequence) -> None:
        """Adds a request; among equals the first one goes first."""
        number = next(self._numbers)
        self._waiting[number] = request
        heapq.heappush(self._by_key, (self.key(request), number))
        if request.priority == "interactive":
            heapq.heappush(self._by_length, (request.num_uncomputed, number))

    def first(self) -> Sequence | None:
        """The next request, which stays in the queue; None if none waits."""
        return self._front(self._by_key)

    def shortest(self) -> Sequence | None:
        """The shortest interactive prompt, which stays in the queue; None if none waits."""
        return self._front(self._by_length)

    def smallest(self, count: int) -> list[Sequence]:
        """The next requests, in their order. They stay in the queue."""
        waiting = ((key, number) for key, number in self._by_key if number in self._waiting)
        return [self._waiting[number] for _, number in heapq.nsmallest(count, waiting)]

    def schedule_next(self, interactive_only: bool = False) -> Sequence | None:
        """Removes and returns the next request; None if none waits."""
        return self._take(self._by_key)

    def take_shortest(self) -> Sequence | None:
        """Removes and returns the shortest interactive prompt; None if none waits."""
        return self._take(self._by_length)

    def _front(self, heap: list) -> Sequence | None:
        while heap and heap[0][1] not in self._waiting:
            heapq.heappop(heap)
        return self._waiting[heap[0][1]] if heap else None

    def _take(self, heap: list) -> Sequence | None:
        return None if self._front(heap) is None else self._waiting.pop(heap[0][1])

    def __len__(self) -> int:
        """The number of requests that wait."""
        return len(self._waiting)
