"""The requests that wait or run, their blocks, and the choice of the next one to begin."""

import heapq
import sys
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Generic, Protocol, TypeVar

from .events import Event, EventQueue
from .hooks import AdmissionHook, LoopHooks
from .limits import Limits
from .request_life import PRIORITIES, SequenceState

Served = TypeVar("Served", bound=SequenceState)


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


class Blocks(Protocol):
    """What is asked of a `BlockAllocator`."""

    num_blocks: int
    block_size: int
    watermark_blocks: int

    @property
    def num_free(self) -> int: ...

    def can_allocate(self, count: int, *, keep_watermark: bool = True) -> bool: ...

    def forget(self, digest: bytes) -> None: ...


@dataclass(eq=False)
class ServingState(Generic[Served]):
    """What a loop and its scheduler share.

    Args:
        allocator: the blocks of the model's pools.
        limits: how large a step may be.
        queue: the requests that wait; the order of their arrival when it is a `FifoQueue`.
        can_join: can_join(one, other) says whether two requests may run at the same time, for example because they need
            the same adapter; None lets any two.
        events: what happens to requests, on its way to the listeners.

    Attributes:
        running: in the order of their admission: the youngest is the last.
        waiting: admits requests. A scheduler may put another one there.
        now: when the step, or its last call of the model, began, in seconds.
        hooks: what was put on the loop.
    """

    allocator: Blocks
    limits: Limits
    queue: WaitingLine[Served] = field(default_factory=FifoQueue)
    can_join: Callable[[Served, Served], bool] | None = None
    events: EventQueue = field(default_factory=lambda: EventQueue([]))
    running: list[Served] = field(default_factory=list, init=False)
    hooks: LoopHooks = field(default_factory=LoopHooks, init=False)
    now: float = field(default=0.0, init=False)

    def __post_init__(self):
        self.waiting = Admission(self)

    def emit(self, kind: str, sequence: SequenceState) -> None:
        """Adds an event of a request, for the next time that nothing is half done."""
        self.events.emit(Event(kind, self.now, sequence))


class Admission(Generic[Served]):
    """Admits a request when there are blocks for all its known tokens and the watermark stays free.

    So a prompt is never begun that might have to be given up halfway, and running requests have blocks to grow into.
    When there is no room for the next request, no later one is admitted before it.

    Args:
        state: the requests that run, and the blocks. Events are "prefill" or "resume" of a request that begins to run,
            and "finish" of one that ended while it waited.
    """

    def __init__(self, state: ServingState[Served]):
        self.allocator, self.running, self.emit = state.allocator, state.running, state.emit
        self.queue, self.can_join = state.queue, state.can_join
        self.whole_prompts = not state.limits.enable_chunked_prefill
        self.holds: list[AdmissionHook[Served]] = state.hooks.admission
        self.returned: deque[Served] = deque()  # before the queue: preempted, or next and without room
        self.is_full = False  # no blocks: no request is admitted until a running one has left

    def __len__(self) -> int:
        """How many wait."""
        return len(self.queue) + len(self.returned) + sum(map(len, self.holds))

    def add(self, sequence: Served, parent: Served | None = None) -> None:
        """Queues a request: in the queue, or before it if its parent has had its turn, for their turn is the same."""
        if parent is not None and parent.num_computed:
            self.returned.append(sequence)
        else:
            self.queue.add(sequence)

    def put_back(self, sequence: Served) -> None:
        """Queues a preempted request before all others.

        It will not be admitted before a running one has left: it needs at least as many blocks as it gave back, and
        others have taken some of those.
        """
        self.returned.appendleft(sequence)

    def admit(self, is_alone: bool, left: int) -> Served | None:
        """The next request that waits, with its blocks; None when no request waits, or the next one does not fit.

        Args:
            is_alone: whether nothing runs. Then it may have every block: with the watermark, it might wait for ever.
            left: tokens of the budget.
        """
        if (ready := self._take_ready(left)) is not None:
            return ready
        while not self.is_full and (sequence := self._take_next()) is not None:
            if not self._reserve(sequence, is_alone, left):
                self.returned.appendleft(sequence)
                return None
            if not self._is_held(sequence):
                return self._begun(sequence)
        return None

    def advance_held(self) -> None:
        """Lets what fills the blocks of held requests go on, once in each step."""
        for hold in self.holds:
            if hold.advance(is_idle=not self.running):
                self.is_full = False

    def wait_for_held(self) -> bool:
        """Waits a moment if requests are held. Returns whether any is: the next step may have something to compute."""
        for hold in self.holds:
            hold.wait()
        return any(map(len, self.holds))

    def restart_held(self) -> None:
        """Lets held requests wait in the queue again, first and without blocks."""
        for sequence in (one for hold in self.holds for one in hold.take_all()):
            sequence.block_table.release()
            sequence.num_computed = 0
            self.returned.appendleft(sequence)
        self.is_full = False

    def drop_ended(self) -> None:
        """Lets those leave that ended while they waited. Only for when that is true of all."""
        for hold in self.holds:
            hold.drop_ended()
        self._take_next()

    def _take_ready(self, left: int) -> Served | None:
        """A request that is held no longer."""
        for hold in self.holds:
            if (ready := hold.take_ready(left if self.whole_prompts else sys.maxsize)) is not None:
                return self._begun(ready)
        return None

    def _is_held(self, sequence: Served) -> bool:
        """Whether a request with a place waits for what its blocks will hold. Others may pass it."""
        return any(hold.takes(sequence) for hold in self.holds)

    def _begun(self, sequence: Served) -> Served:
        if not sequence.num_preemptions:
            sequence.num_cached = sequence.num_computed
        self.emit("resume" if sequence.num_preemptions else "prefill", sequence)
        return sequence

    def fits_beside(self, sequence: Served, others: Iterable[Served]) -> bool:
        """Whether a request may run with all of these, besides blocks."""
        return self.can_join is None or all(self.can_join(sequence, other) for other in others)

    def _take_next(self) -> Served | None:
        """Takes the next request out; those that ended while they waited leave."""
        while self.returned or len(self.queue):
            sequence = self.returned.popleft() if self.returned else self.queue.schedule_next()
            if sequence is None or not sequence.is_done:
                return sequence
            self.emit("finish", sequence)
        return None

    def _reserve(self, sequence: Served, is_alone: bool, left: int) -> bool:
        """Gives a request its cached prefix and blocks for the rest; False when it cannot have them now."""
        table, known = sequence.block_table, len(sequence.known_tokens)
        sequence.num_computed = table.share(sequence.cacheable_tokens)
        has_blocks = self.allocator.can_allocate(table.missing(known), keep_watermark=not is_alone)
        self.is_full = not (has_blocks and self.fits_beside(sequence, self._others()))
        is_too_long = self.whole_prompts and sequence.num_uncomputed > left
        if self.is_full or is_too_long or any(hold.refuses(sequence) for hold in self.holds):
            table.release()
            sequence.num_computed = 0
            return False
        table.reserve(known)
        return True

    def _others(self) -> Sequence[Served]:
        """The requests that have a place."""
        return [*self.running, *(one for hold in self.holds for one in hold)]
