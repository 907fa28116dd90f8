"""The life of a request: the check of its prompt, its queue, and how it ends, in Week 2 and in Week 3. Given."""

import heapq
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any, Generic, Protocol, TypeVar

from .answer_text import AnswerText


def prompt_error(
    tokens: Sequence[int], vocab_size: int, max_seq_len: int, limit: str = "max_seq_len"
) -> str | None:
    """Why a prompt cannot be served, in one line; None when it can.

    Args:
        tokens: its ids.
        vocab_size: token ids are below it.
        max_seq_len: tokens of prompt and answer together, at most.
        limit: the caller's name of `max_seq_len`, for the message.
    """
    if not tokens:
        return "the prompt is empty: give the model at least one token to continue"
    strange = [] if _all_known(tokens, vocab_size) else _strange(tokens, vocab_size)
    if strange:
        return f"token id {strange[0]} is not one of 0 to {vocab_size - 1}: the prompt is not of this model"
    if len(tokens) >= max_seq_len:
        return (
            f"the prompt has {len(tokens)} tokens, but {limit} is {max_seq_len} with the answer: shorten it"
        )
    return None


def _all_known(tokens: Sequence[int], vocab_size: int) -> bool:
    """Whether all ids are in the vocabulary, for prompts of thousands of them: no Python code runs per token."""
    return set(map(type, tokens)) == {int} and min(tokens) >= 0 and max(tokens) < vocab_size


def _strange(tokens: Sequence[int], vocab_size: int) -> list[int]:
    return [t for t in tokens if type(t) is not int or not 0 <= t < vocab_size]


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


class RequestLife(ABC):
    """An answer that grows until its request ends. `Request` of Week 2 and `Sequence` of Week 3 are such.

    Args:
        answer: its text, still empty.
    """

    def __init__(self, answer: AnswerText):
        self.answer = answer
        self.tokens: list[int] = []  # of the answer, without the token that ended it
        self.finish_reason: str | None = None  # "stop", "length", "abort" or "error"
        self.error: str | None = None  # one line, with the finish reason "error"
        self._is_computing = False  # a call of the model is using it, or is about to
        self._is_aborted = False  # it ends at the end of that call

    @property
    def text(self) -> str:
        """The answer so far."""
        return self.answer.text

    @property
    def is_done(self) -> bool:
        return self.finish_reason is not None

    def finish(self, reason: str) -> None:
        """Ends the request: adds held-back text, and releases its memory. The first reason stays."""
        if self.is_done:
            return
        self.finish_reason = reason
        self.answer.finish()
        self.release()

    def fail(self, error: str) -> None:
        """Ends the request with the finish reason "error" and a line that says why. The first reason stays."""
        if self.is_done:
            return
        self.finish_reason, self.error = "error", error
        self.release()

    @abstractmethod
    def release(self) -> None:
        """Gives the memory of its keys and values back. A second call does nothing."""

    def begin_call(self) -> None:
        """The next call of the model computes it: its memory stays until `end_call`."""
        self._is_computing = True

    def end_call(self, failed: BaseException | None = None) -> None:
        """The call of the model is over, or will not come. A request that was aborted meanwhile ends now.

        Args:
            failed: what it raised. The memory may hold a part of the step then, so the request cannot go on. On Ctrl-C
                it ends as aborted, else with the error's message.
        """
        self._is_computing = False
        if self._is_aborted or (failed is not None and not isinstance(failed, Exception)):
            self.finish("abort")
        elif failed is not None:
            self.fail(str(failed) or type(failed).__name__)


@contextmanager
def model_call(*requests: RequestLife) -> Iterator[None]:
    """Context of one call of the model on these requests.

    A request that is aborted during the call ends after it. A call that raises ends all of them, with the error's
    message or, on Ctrl-C, as aborted: their caches may hold a part of the step, so none of them can continue.
    """
    for request in requests:
        request.begin_call()
    failed: BaseException | None = None
    try:
        yield
    except BaseException as error:
        failed = error
        raise
    finally:
        for request in requests:
            request.end_call(failed)


@dataclass(frozen=True)
class Completion:
    """The result of one request.

    Args:
        prompt_idx: index of its prompt in the list of prompts.
        text: the answer, without the prompt.
        finish_reason: "stop" (an end token or a stop string), "length" (a limit), "abort" or "error".
        error: one line that says why, with the finish reason "error".
    """

    prompt_idx: int
    text: str
    finish_reason: str
    error: str | None = None

    @classmethod
    def of(cls, request: Any) -> "Completion":
        """The completion of a `Request` that has ended."""
        reason = (
            request.finish_reason or "unfinished"
        )  # the second is a mistake of the caller, which tests then name
        return cls(request.prompt_idx, request.text, reason, request.error)
