"""The loop of Week 3: requests wait, steps compute them, results go. The solution's scheduler plans the steps."""

import sys
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, Protocol, TypeVar

from tiny_llm_common.drafted import sampled_requests
from tiny_llm_common.events import Event, EventQueue
from tiny_llm_common.moves import CopyFailed
from tiny_llm_common.packed_model import PackedBatch, PackedModel, PromptRow, Sampled
from tiny_llm_common.request_life import Completion, FifoQueue, WaitingLine
from tiny_llm_common.scheduled import Scheduled, SequenceState
from tiny_llm_common.step_options import Hooks, grouped

from .returns import Returns

Served = TypeVar("Served", bound=SequenceState)


class Blocks(Protocol):
    """What is asked of a `BlockAllocator`."""

    num_blocks: int
    block_size: int
    watermark_blocks: int

    @property
    def num_free(self) -> int: ...

    def can_allocate(self, count: int, *, keep_watermark: bool = True) -> bool: ...

    def forget(self, digest: bytes) -> None: ...


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
        hooks: `can_join` says whether two requests may run at the same time; `cold` has blocks outside the pool.
    """

    def __init__(
        self,
        allocator: Blocks,
        queue: WaitingLine[Served] | None,
        running: Sequence[Served],
        emit: Callable[[str, Served], None],
        *,
        whole_prompts: bool = False,
        hooks: Hooks,
    ):
        self.allocator, self.running, self.emit = allocator, running, emit
        can_join, self.returns = hooks.can_join, Returns[Served](hooks.cold, emit)
        self.whole_prompts, self.can_join = whole_prompts, can_join
        self.queue: WaitingLine[Served] = FifoQueue() if queue is None else queue
        self.returned: deque[Served] = deque()  # before the queue: preempted, or next and without room
        self.is_full = False  # no blocks: no request is admitted until a running one has left

    def __len__(self) -> int:
        """How many wait."""
        return len(self.queue) + len(self.returned) + len(self.returns)

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
            if not self._comes_later(sequence):
                return self._begun(sequence)
        return None

    def bring_back(self) -> None:
        """Plans copies of blocks for requests that wait for them, once in each step."""
        if self.returns.advance(is_idle=not self.running):
            self.is_full = False

    def restart_returning(self) -> None:
        """Lets requests that wait for blocks wait in the queue again, first and without blocks."""
        for sequence in self.returns.take_all():
            sequence.block_table.release()
            sequence.num_computed = 0
            self.returned.appendleft(sequence)
        self.is_full = False

    def drop_ended(self) -> None:
        """Lets those leave that ended while they waited. Only for when that is true of all."""
        self.returns.drop_ended()
        self._take_next()

    def _take_ready(self, left: int) -> Served | None:
        """A request whose blocks have come back."""
        sequence = self.returns.take_ready(left if self.whole_prompts else sys.maxsize)
        return None if sequence is None else self._begun(sequence)

    def _comes_later(self, sequence: Served) -> bool:
        """Whether blocks of a request come back first. It has its place, and others may pass it."""
        if digests := self._wanted(sequence):
            self.returns.begin(sequence, digests)
        return bool(digests)

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
        sequence.num_computed = table.share(self._cacheable(sequence))
        has_blocks = self.allocator.can_allocate(table.missing(known), keep_watermark=not is_alone)
        self.is_full = not (has_blocks and self.fits_beside(sequence, [*self.running, *self.returns]))
        is_too_long = self.whole_prompts and sequence.num_uncomputed > left
        if self.is_full or is_too_long or (self.returns.is_full and self._wanted(sequence)):
            table.release()
            sequence.num_computed = 0
            return False
        table.reserve(known)
        return True

    def _wanted(self, sequence: Served) -> list[bytes]:
        return self.returns.wanted(sequence.block_table, self._cacheable(sequence))

    def _cacheable(self, sequence: Served) -> Sequence[int]:
        # What the model thinks of a prompt is computed from all of it.
        return sequence.known_tokens if sequence.sampling.prompt_logprobs is None else []


class StepLoop(ABC, Generic[Served]):
    """Plans, runs the model, and commits, until every request has ended.

    What the model or a listener raises is raised by `step`. A call of the model that fails ends the requests in it. The
    next step serves all others.

    Args:
        model: what computes a packed batch.
        allocator: the blocks of the model's pools.
        new_table: makes the block table of a request.
        pack: puts the entries of a plan into one batch.
        options: the fields of `Limits`, `Hooks` and `Observers`, by their names.

    Raises:
        TypeError: there is no such option.
        ValueError: a number is out of range, or two options exclude each other.
    """

    cuts_prompts = True  # False in a policy that computes whole prompts, whatever the options say
    num_returning = 0  # blocks that were freed and come back later, in an engine that overlaps its steps

    def __init__(
        self,
        model: PackedModel,
        allocator: Blocks,
        *,
        new_table: Callable[[Any], Any],
        pack: Callable[[Sequence[Scheduled]], PackedBatch],
        **options: Any,
    ):
        if not self.cuts_prompts:
            options["enable_chunked_prefill"] = False
        limits, hooks, observers = grouped(options, model.max_model_len)
        self.model, self.allocator, self._new_table, self._pack = model, allocator, new_table, pack
        self.max_num_batched_tokens, self.max_num_seqs = limits.max_num_batched_tokens, limits.max_num_seqs
        self.longest_chunk = limits.long_prefill_token_threshold or limits.max_num_batched_tokens
        self.enable_chunked_prefill, self.mixed_steps = limits.enable_chunked_prefill, limits.mixed_steps
        self.prompt_rules = hooks.prompt_rules(limits)
        self.clock, self.now = observers.clock, 0.0  # when the step, or its last call of the model, began
        self.events = EventQueue(observers.listeners(self.prompt_rules))
        self.running: list[Served] = []  # in the order of their admission: the youngest is the last
        self.waiting = self.make_admission(hooks)
        self.is_closed = False
        self._sequences: list[Served] = []  # all that were added and not yet collected
        self._changing: list[Served] = []  # those that want their logits changed
        self._asks_prompts = False  # whether any wanted the log-probabilities of its prompt

    def make_admission(self, hooks: Hooks) -> Admission:
        """The requests that wait. A policy may have another order here."""
        modes = {"whole_prompts": not self.enable_chunked_prefill, "hooks": hooks}
        return Admission(self.allocator, hooks.queue, self.running, self.emit, **modes)

    # What a scheduler decides.

    @abstractmethod
    def plan(self, now: float) -> list[Scheduled]:
        """Decides what the next step computes, and reserves its blocks."""

    def propose(self, plan: list[Scheduled]) -> None:
        """Adds guesses to a plan, for which another model may run. Without speculative decoding there are none."""

    @abstractmethod
    def calls(self, plan: list[Scheduled]) -> list[list[Scheduled]]:
        """The calls of the model that compute a plan."""

    @abstractmethod
    def commit(self, plan: Sequence[Scheduled], sampled: Sequence[Sampled]) -> None:
        """Records what a call has computed."""

    @abstractmethod
    def remove_ended(self) -> None:
        """Removes requests that have ended from those that run."""

    @abstractmethod
    def preempt(self, sequence: Served) -> None:
        """Takes the blocks of a running request away, which is computed again later."""

    # The life of a request.

    def add(self, sequence: Served) -> None:
        """Queues a request. One that can never be served ends here, with its reason.

        Raises:
            RuntimeError: the scheduler is closed.
        """
        pool_tokens = self.allocator.num_blocks * self.allocator.block_size
        sequence.check(self.model.vocab_size, self.model.max_model_len, pool_tokens)
        self.enqueue(sequence)

    def enqueue(self, sequence: Served, parent: Served | None = None) -> None:
        """Queues a request that was checked.

        Args:
            sequence: the request; one that has ended leaves at once.
            parent: another answer to its prompt, with which it has arrived.

        Raises:
            RuntimeError: the scheduler is closed.
        """
        if self.is_closed:
            raise RuntimeError("this scheduler is closed: make a new one for more requests")
        now = self.clock()
        sequence.block_table = self._new_table(self.allocator)
        sequence.waiting_since = now if parent is None else parent.waiting_since
        self._sequences.append(sequence)
        self.events.emit(Event("arrive", sequence.waiting_since, sequence))
        if sequence.is_done:
            self.events.emit(Event("finish", now, sequence))
        else:
            self.waiting.add(sequence, parent)
            if sequence.sampling.changes_logits:
                self._changing.append(sequence)
            self._asks_prompts |= sequence.sampling.prompt_logprobs is not None
        self.events.deliver()

    def has_work_remaining(self) -> bool:
        """Whether a request waits or runs."""
        return bool(self.running or len(self.waiting))

    def step(self) -> bool:
        """Plans a step, runs the model, and records the results.

        Returns:
            Whether anything was computed or has to be planned again; when not, no work remains.
        """
        try:
            plan = self.plan(self.clock())
            self.propose(plan)
            for call in self.calls(plan):
                self._run(call)
        except CopyFailed:
            return True
        finally:
            for sequence in self.running:  # also those of a call that was not begun
                sequence.end_call()
        return bool(plan) or self.waiting.returns.wait()

    def _run(self, call: list[Scheduled]) -> None:
        try:
            sampled = self.model.run(self.packed(call))
        except BaseException as error:
            self.cancel(call, error)
            raise
        self.commit(call, sampled)

    def packed(self, call: list[Scheduled]) -> PackedBatch:
        """A call of the model as a batch, with all that any batch carries."""
        batch = self.pack_call(call)
        self.waiting.returns.put_moves_into(batch.moves)
        if self._changing:  # else a step does not look at what it draws
            self._changing = [sequence for sequence in self._changing if not sequence.is_done]
            batch.requests.extend(sampled_requests(call))
        if self._asks_prompts:  # to ask every entry costs a step of 64 requests 2 %
            self._put_prompt_rows_into(batch, call)
        return batch

    def pack_call(self, call: Sequence[Scheduled]) -> PackedBatch:
        """The tokens of a call in one row. Days 4.3 and 4.4 have other ones."""
        return self._pack(call)

    @staticmethod
    def _put_prompt_rows_into(batch: PackedBatch, call: Sequence[Scheduled]) -> None:
        """Adds the rows of prompts whose tokens get log-probabilities."""
        for entry, first in zip(call, batch.query_start, strict=False):
            for position in entry.sequence.prompt_positions(entry.start, entry.stop):
                batch.prompt_rows.append(PromptRow(entry.sequence, position))
                batch.sample_rows.append(first + position - entry.start)

    def cancel(self, plan: Sequence[Scheduled], error: BaseException) -> None:
        """Ends the requests of a failed call, whose writes are unknown, and frees their blocks.

        A copy that failed ends no request. Whatever has failed, a request that has a block whose copy was not made
        computes its text again.
        """
        failed = None if isinstance(error, CopyFailed) else error
        for entry in plan:
            entry.sequence.end_call(failed)
        for sequence in self.running:  # those of a call that was planned and not begun
            sequence.end_call()
        self.remove_ended()
        if lost := self.waiting.returns.forget_unmade():
            self._restart(lost)
        self.events.deliver()

    def _restart(self, lost: set[bytes]) -> None:
        """Restarts the requests with blocks that may not hold these texts, and lets no other request find them."""
        for sequence in reversed(self.running.copy()):
            if lost.intersection(sequence.block_table.digests):
                self.preempt(sequence)
        self.waiting.restart_returning()
        for digest in lost:
            self.allocator.forget(digest)

    def collect_results(self) -> list[Completion]:
        """The results of the requests that have ended since the last call, in the order of their numbers."""
        ended = [sequence for sequence in self._sequences if sequence.is_done]
        self._sequences = [sequence for sequence in self._sequences if not sequence.is_done]
        results = (
            Completion(one.request_id, one.text, one.finish_reason or "unfinished", one.error)
            for one in ended
        )
        return sorted(results, key=lambda completion: completion.prompt_idx)

    def abort_all(self) -> None:
        """Ends every request that has not ended, wherever it is, and frees its blocks. Not in a step."""
        for sequence in self._sequences:
            sequence.end_call()
            sequence.abort()
        self.remove_ended()
        self.waiting.drop_ended()
        self.events.deliver()

    def close(self) -> None:
        """Ends every request that has not ended, wherever it is, and frees its blocks."""
        self.is_closed = True
        for sequence in self._sequences:
            sequence.end_call()
            sequence.abort()
        self.running.clear()

    def emit(self, kind: str, sequence: SequenceState) -> None:
        """Adds an event of a request, for the next time that nothing is half done."""
        self.events.emit(Event(kind, self.now, sequence))
