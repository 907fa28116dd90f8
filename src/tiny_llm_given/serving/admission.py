"""The requests that wait, and when the next of them begins to run."""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Generic, Protocol, TypeVar

from tiny_llm_common.request_queue import FifoQueue, WaitingLine
from tiny_llm_common.sequence_state import SequenceState

Served = TypeVar("Served", bound=SequenceState)


class Blocks(Protocol):
    """What is asked of a `BlockAllocator`."""

    num_blocks: int
    block_size: int
    watermark_blocks: int

    @property
    def num_free(self) -> int: ...

    def can_allocate(self, count: int, *, keep_watermark: bool = True) -> bool: ...


class Admission(Generic[Served]):
    """Admits a request when there are blocks for all its known tokens and the watermark stays free.

    So a prompt is never begun that might have to be given up halfway, and running requests have blocks to grow into.
    When there is no room for the next request, no later one is admitted before it.

    Args:
        allocator: the blocks.
        queue: the requests that wait; a `FifoQueue` when None.
        running: the requests that run; the scheduler changes the list in place.
        emit: called as emit(kind, sequence): "prefill" or "resume" of one that begins to run, and "finish" of one that
            ended while it waited.
        whole_prompts: whether a request waits for a step that can compute all of it.
        can_join: whether two requests may run at the same time; None lets any two.
    """

    def __init__(
        self,
        allocator: Blocks,
        queue: WaitingLine[Served] | None,
        running: Sequence[Served],
        emit: Callable[[str, Served], None],
        *,
        whole_prompts: bool = False,
        can_join: Callable[[Served, Served], bool] | None = None,
    ):
        self.allocator, self.running, self.emit = allocator, running, emit
        self.whole_prompts, self.can_join = whole_prompts, can_join
        self.queue: WaitingLine[Served] = FifoQueue() if queue is None else queue
        self.returned: deque[Served] = deque()  # before the queue: preempted, or next and without room
        self.is_full = False  # no blocks: no request is admitted until a running one has left

    def __len__(self) -> int:
        """How many wait."""
        return len(self.queue) + len(self.returned)

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
        if self.is_full:
            return None
        sequence = self._take_next()
        if sequence is None or self._reserve(sequence, is_alone, left):
            return sequence
        self.returned.appendleft(sequence)
        return None

    def drop_ended(self) -> None:
        """Lets those leave that ended while they waited. Only for when that is true of all."""
        self._take_next()

    def fits_beside(self, sequence: Served, others: Iterable[Served]) -> bool:
        """Whether a request may run with all of these, besides blocks."""
        return self.can_join is None or all(self.can_join(sequence, other) for other in others)

    def _take_next(self) -> Served | None:
        """Takes the next request out; those that ended while they waited leave."""
        while len(self):
            sequence = self.returned.popleft() if self.returned else self.queue.schedule_next()
            if sequence is None or not sequence.is_done:
                return sequence
            self.emit("finish", sequence)
        return None

    def _reserve(self, sequence: Served, is_alone: bool, left: int) -> bool:
        """Gives a request its cached prefix and blocks for the rest; False when it cannot have them now."""
        table, known = sequence.block_table, len(sequence.known_tokens)
        # What the model thinks of a prompt is computed from all of it.
        cached = sequence.known_tokens if sequence.sampling.prompt_logprobs is None else []
        sequence.num_computed = table.share(cached)
        has_blocks = self.allocator.can_allocate(table.missing(known), keep_watermark=not is_alone)
        self.is_full = not (has_blocks and self.fits_beside(sequence, self.running))
        if self.is_full or (self.whole_prompts and sequence.num_uncomputed > left):
            table.release()
            sequence.num_computed = 0
            return False
        table.reserve(known)
        if not sequence.num_preemptions:
            sequence.num_cached = sequence.num_computed
        self.emit("resume" if sequence.num_preemptions else "prefill", sequence)
        return True
