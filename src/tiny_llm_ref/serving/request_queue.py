"""Requests that wait for their prefill. Given."""

import heapq
from collections import deque
from itertools import count
from typing import Protocol

from .request import Request


class RequestQueue(Protocol):
    """Who waits, and who is next. No call takes longer because more requests wait."""

    def add(self, request: Request) -> None:
        """Lets a request wait."""

    def schedule_next(self, interactive_only: bool = False) -> Request | None:
        """Takes the next one out; None when nobody waits, or when only an interactive one may go and none is next."""

    def shorter_than(self, tokens: int, interactive_only: bool = False) -> Request | None:
        """Takes the shortest prompt out, if it has fewer than so many tokens; None when there is none."""

    def __len__(self) -> int:
        """How many wait."""


class FifoQueue:
    """First come, first served."""

    def __init__(self):
        self._numbers = count()
        self._waiting: dict[int, Request] = {}
        self._line: deque[int] = deque()  # numbers in the order of arrival
        self._by_length: list[tuple[int, int]] = []  # a heap of (tokens, number)

    def add(self, request: Request) -> None:
        number = next(self._numbers)
        self._waiting[number] = request
        self._line.append(number)
        heapq.heappush(self._by_length, (len(request.prompt_tokens), number))

    def schedule_next(self, interactive_only: bool = False) -> Request | None:
        self._forget_taken()
        if not self._line or not self._may_go(self._line[0], interactive_only):
            return None
        return self._waiting.pop(self._line.popleft())

    def shorter_than(self, tokens: int, interactive_only: bool = False) -> Request | None:
        self._forget_taken()
        if not self._by_length or self._by_length[0][0] >= tokens:
            return None
        if not self._may_go(self._by_length[0][1], interactive_only):
            return None
        return self._waiting.pop(heapq.heappop(self._by_length)[1])

    def _may_go(self, number: int, interactive_only: bool) -> bool:
        return not interactive_only or self._waiting[number].priority == "interactive"

    def _forget_taken(self) -> None:
        """A request that left by one order is dropped from the other when it comes to the front there."""
        while self._line and self._line[0] not in self._waiting:
            self._line.popleft()
        while self._by_length and self._by_length[0][1] not in self._waiting:
            heapq.heappop(self._by_length)
        if (
            len(self._by_length) > 2 * len(self._waiting) + 64
        ):  # so that old long prompts take no memory for ever
            self._by_length = [(len(r.prompt_tokens), number) for number, r in self._waiting.items()]
            heapq.heapify(self._by_length)

    def __len__(self) -> int:
        return len(self._waiting)
