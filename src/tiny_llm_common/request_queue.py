"""The two classes of requests, and queues of those that wait for their prefill. Given."""

import heapq
from collections import deque
from itertools import count
from typing import Generic, Protocol, TypeVar

PRIORITIES = ("interactive", "batch")


def check_priority(priority: str) -> str:
    """Returns the priority.

    Raises:
        ValueError: there is no such class.
    """
    if priority not in PRIORITIES:
        raise ValueError(f"priority is {priority!r}: choose {' or '.join(PRIORITIES)}")
    return priority


class Queued(Protocol):
    """What a queue reads of a request, of Week 2 or of Week 3."""

    prompt_tokens: list[int]
    priority: str


Waiting = TypeVar("Waiting", bound=Queued)


class WaitingLine(Protocol[Waiting]):
    """A queue of waiting requests. The time of a call hardly grows with the number of requests."""

    def add(self, request: Waiting) -> None:
        """Adds a request."""

    def schedule_next(self, interactive_only: bool = False) -> Waiting | None:
        """Removes and returns the next request; None if none waits, or no interactive one if only those may go."""

    def __len__(self) -> int:
        """The number of requests that wait."""
        ...


class RequestQueue(WaitingLine[Waiting], Protocol):
    """A line that also knows its shortest prompt: for pausing (Day 2.7)."""

    def shorter_than(self, tokens: int, interactive_only: bool = False) -> Waiting | None:
        """Removes and returns the shortest prompt, if it has fewer than `tokens` tokens; None otherwise."""
        ...


class FifoQueue(Generic[Waiting]):
    """First come, first served; if only interactive requests may go, the first of those.

    A request is in the line and in the heap of its priority, by its number. After it was taken from one of the two, the
    other drops it when it comes to the front there.
    """

    def __init__(self):
        self._numbers = count()
        self._waiting: dict[int, Waiting] = {}
        self._lines: dict[str, deque[int]] = {name: deque() for name in PRIORITIES}
        self._heaps: dict[str, list[tuple[int, int]]] = {name: [] for name in PRIORITIES}  # (tokens, number)

    def add(self, request: Waiting) -> None:
        number = next(self._numbers)
        self._waiting[number] = request
        self._lines[request.priority].append(number)
        heapq.heappush(self._heaps[request.priority], (len(request.prompt_tokens), number))

    def schedule_next(self, interactive_only: bool = False) -> Waiting | None:
        first = [line[0] for line in self._fronts(self._lines, interactive_only)]
        return self._waiting.pop(min(first)) if first else None

    def shorter_than(self, tokens: int, interactive_only: bool = False) -> Waiting | None:
        shortest = min((heap[0] for heap in self._fronts(self._heaps, interactive_only)), default=None)
        return self._waiting.pop(shortest[1]) if shortest and shortest[0] < tokens else None

    def _fronts(self, lines: dict, interactive_only: bool) -> list:
        """The non-empty lines, or heaps, of the priorities that may go, each with a waiting request in front."""
        self._forget_taken()
        return [
            line for name, line in lines.items() if line and (name == "interactive" or not interactive_only)
        ]

    def _forget_taken(self) -> None:
        for name in PRIORITIES:
            line, heap = self._lines[name], self._heaps[name]
            while line and line[0] not in self._waiting:
                line.popleft()
            while heap and heap[0][1] not in self._waiting:
                heapq.heappop(heap)
            if max(len(line), len(heap)) > 2 * len(self._waiting) + 64:  # free the memory of taken ones
                line = self._lines[name] = deque(number for number in line if number in self._waiting)
                heap = self._heaps[name] = [entry for entry in heap if entry[1] in self._waiting]
                heapq.heapify(heap)

    def __len__(self) -> int:
        return len(self._waiting)
