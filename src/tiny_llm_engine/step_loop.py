"""The loop of Week 3: requests wait, steps compute them, results go. A scheduler of the solution plans the steps."""

from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, TypeVar

from .admission import Admission, ServingState
from .events import Event
from .packed_model import CallGivenUp, PackedBatch, PackedModel, PromptRow, Sampled
from .request_life import Completion, SequenceState
from .scheduled import Scheduled, step_parts

Served = TypeVar("Served", bound=SequenceState)
Pack = Callable[[Sequence[Scheduled[Served]]], PackedBatch]


class Scheduler(Protocol[Served]):
    """Decides what each step computes: the `HybridScheduler` of a solution, or one of its policies."""

    state: ServingState[Served]
    max_num_batched_tokens: int
    num_returning: int
    plan_decodes: Callable[[list[Scheduled[Served]]], None]
    make_room: Callable[[Served], bool]

    def new_table(self, allocator: Any) -> Any:
        """The block table of a request."""

    def pack(self, plan: Sequence[Scheduled[Served]], /) -> PackedBatch:
        """A call of the model as one batch: its tokens, positions, slots, and which rows are sampled."""
        ...

    def plan_step(self, plan: list[Scheduled[Served]]) -> None:
        """Fills an empty plan, with one entry per request at most, and reserves its blocks."""

    def calls(self, plan: list[Scheduled[Served]]) -> list[list[Scheduled[Served]]]:
        """The calls of the model that compute a plan, none of them empty."""
        ...

    def preempt(self, sequence: Served) -> None:
        """Takes the place and the blocks of a running request away, which is computed again later."""

    def lets_leave(self) -> bool:
        """Whether requests that have ended leave now."""
        ...


class Calls(Protocol):
    """Computes the calls of plans: one after the other, or several at a time."""

    def advance(self) -> bool:
        """Plans and computes. Returns whether anything was computed."""
        ...

    @property
    def is_idle(self) -> bool:
        """Whether no call is being computed."""
        ...

    def abandon(self) -> list[Scheduled]:
        """Gives up what is being computed; returns it."""
        ...


class StepLoop(Generic[Served]):
    """Plans, runs the model, and commits, until every request has ended.

    What the model or a listener raises is raised by `step`. A call of the model that fails ends the requests in it. The
    next step serves all others.

    Args:
        model: what computes a packed batch.
        scheduler: plans the steps.
        clock: seconds.

    Attributes:
        calls: how the calls of plans are computed.
        pack: makes the batch of a call.
    """

    def __init__(
        self,
        model: PackedModel,
        scheduler: Scheduler[Served],
        clock: Callable[[], float],
    ):
        self.model, self.scheduler, self.state = model, scheduler, scheduler.state
        self.pack: Pack[Served] = scheduler.pack
        self.clock = clock
        self.allocator, self.events, self.hooks = self.state.allocator, self.state.events, self.state.hooks
        self.calls: Calls = OneByOne(self)
        self.is_closed = False
        self._sequences: list[Served] = []  # all that were added and not yet collected
        self._changing: list[Served] = []  # those that want their logits changed
        self._asks_prompts = False  # whether any wanted the log-probabilities of its prompt

    @property
    def running(self) -> list[Served]:
        """The requests that run, in the order of their admission."""
        return self.state.running

    @property
    def waiting(self) -> Admission[Served]:
        """The requests that wait."""
        return self.state.waiting

    # A request comes.

    def add(self, sequence: Served) -> None:
        """Queues a request. One that can never be served ends here, with its reason.

        Raises:
            RuntimeError: the loop is closed.
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
            RuntimeError: the loop is closed.
        """
        if self.is_closed:
            raise RuntimeError("this scheduler is closed: make a new one for more requests")
        now = self.clock()
        sequence.block_table = self.scheduler.new_table(self.allocator)
        sequence.waiting_since = now if parent is None else parent.waiting_since
        self._sequences.append(sequence)
        self.events.emit(Event("arrive", sequence.waiting_since, sequence))
        if sequence.is_done:
            self.events.emit(Event("finish", now, sequence))
        else:
            for hook in self.hooks.request:
                hook(sequence)
            self.waiting.add(sequence, parent)
            if sequence.sampling.changes_logits:
                self._changing.append(sequence)
            self._asks_prompts |= sequence.sampling.prompt_logprobs is not None
        self.events.deliver()

    def has_work_remaining(self) -> bool:
        """Whether a request waits or runs, or a call is being computed."""
        return bool(self.running or len(self.waiting)) or not self.calls.is_idle

    # A step: plan, pack, run, commit.

    def step(self) -> bool:
        """Plans a step, runs the model, and records the results.

        Returns:
            Whether anything was computed or has to be planned again; when not, no work remains.
        """
        try:
            return self.calls.advance() or self.waiting.wait_for_held()
        except CallGivenUp:
            return True

    def plan(self, now: float) -> list[Scheduled[Served]]:
        """Decides what the next step computes, and reserves its blocks. Calls no model; `commit` or `cancel` follows.

        Args:
            now: seconds, for the events.

        Returns:
            Entries of different requests, decodes first; empty when no work remains.

        Raises:
            ValueError: the scheduler has planned a request twice.
        """
        self.state.now = now
        self.remove_ended()
        self.waiting.advance_held()
        plan: list[Scheduled[Served]] = []
        self.scheduler.plan_step(plan)
        check_plan(plan)
        for entry in plan:
            entry.sequence.begin_call()
        if self.events.pending:  # most steps admit and end nobody
            self.events.deliver()
        for hook in self.hooks.plan:
            hook.change(plan, self.scheduler.calls(plan))
        return plan

    def run(self, call: list[Scheduled[Served]]) -> Sequence[Sampled]:
        """Computes a call; returns one draw for each entry that needs a token. If it fails, its requests end."""
        try:
            return self.model.run(self.packed(call))
        except BaseException as error:
            self.cancel(call, error)
            raise

    def packed(self, call: list[Scheduled[Served]]) -> PackedBatch:
        """A call of the model as a batch, with all that any batch carries."""
        batch = self.pack(call)
        if self._changing:  # else a step does not look at what it draws
            self._changing = [sequence for sequence in self._changing if not sequence.is_done]
            batch.requests.extend(entry.sequence for entry in call if entry.needs_token)
        if self._asks_prompts:  # to ask every entry costs a step of 64 requests 2 %
            put_prompt_rows_into(batch, call)
        for hook in self.hooks.batch:
            hook(batch, call)
        return batch

    def commit(self, call: Sequence[Scheduled[Served]], sampled: Sequence[Sampled]) -> None:
        """Records what a call has computed: keys and values, tokens, ends. Then emits the events.

        Args:
            call: what was computed.
            sampled: one for each entry that needs a token, in their order.

        Raises:
            ValueError: there are more of them, or fewer.
        """
        for hook in self.hooks.commit:
            sampled = hook.first_draws(call, sampled)
        parts = step_parts(call, self.running)
        drawn = [entry.sequence for entry in call if entry.needs_token]
        for entry in call:
            sequence, stop = entry.sequence, entry.stop
            sequence.num_computed = stop
            sequence.block_table.register(sequence.known_tokens, stop)
            sequence.end_call()  # a request that was aborted meanwhile ends here, without a token
        for sequence, token in zip(drawn, sampled, strict=True):
            sequence.take_sampled(token)
        self._emit_step(parts, drawn)
        for hook in self.hooks.commit:
            hook.committed(call)
        self.remove_ended()
        if self.events.pending:
            self.events.deliver()

    def _emit_step(self, parts: Any, drawn: Sequence[Served]) -> None:
        start, now = self.state.now, self.clock()
        self.state.now = now
        for sequence in drawn:
            sequence.token_time = now
        tokens = [Event("token", now, sequence) for sequence in drawn if sequence.finish_reason != "abort"]
        self.events.deliver(Event("step", now, start=start, parts=parts), *tokens)

    # A request goes.

    def remove_ended(self) -> None:
        """Removes requests that have ended; others can be admitted."""
        ended = [sequence for sequence in self.running if sequence.is_done]
        if not ended or not self.scheduler.lets_leave():
            return
        self.running[:] = [sequence for sequence in self.running if not sequence.is_done]
        self.waiting.is_full = False
        for sequence in ended:
            self.state.emit("finish", sequence)
        if all(sequence.is_done for sequence in self._sequences):  # there may be no further step
            self.waiting.drop_ended()

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
        self.calls.abandon()
        self._abort()
        self.remove_ended()
        self.waiting.drop_ended()
        self.events.deliver()

    def close(self) -> None:
        """Ends every request that has not ended, wherever it is, and frees its blocks."""
        self.is_closed = True
        self.calls.abandon()
        self._abort()
        self.running.clear()

    def _abort(self) -> None:
        for sequence in self._sequences:
            sequence.end_call()
            sequence.abort()

    # A call fails.

    def cancel(self, call: Sequence[Scheduled[Served]], error: BaseException) -> None:
        """Ends the requests of a failed call, whose writes are unknown, and frees their blocks.

        A call that was given up ends no request. Whatever has failed, a request that has a block whose text is lost
        computes it again.
        """
        failed = None if isinstance(error, CallGivenUp) else error
        for entry in call:
            entry.sequence.end_call(failed)
        for sequence in self.running:  # those of a call that was planned and not begun
            sequence.end_call()
        self.remove_ended()
        if lost := {digest for hook in self.hooks.failure for digest in hook()}:
            self._restart(lost)
        self.events.deliver()

    def _restart(self, lost: set[bytes]) -> None:
        """Restarts the requests with blocks that may not hold these texts, and lets no other request find them."""
        for sequence in reversed(self.running.copy()):
            if lost.intersection(sequence.block_table.digests):
                self.scheduler.preempt(sequence)
        self.waiting.restart_held()
        for digest in lost:
            self.allocator.forget(digest)


class OneByOne:
    """Computes the calls of a plan one after the other: each is committed before the next one begins.

    Args:
        loop: plans, runs and commits.
    """

    is_idle = True  # between two steps

    def __init__(self, loop: StepLoop):
        self.loop = loop

    def advance(self) -> bool:
        """See `Calls`."""
        loop = self.loop
        try:
            plan = loop.plan(loop.clock())
            for call in loop.scheduler.calls(plan):
                loop.commit(call, loop.run(call))
        except BaseException:
            for sequence in loop.running:  # also those of a call that was not begun
                sequence.end_call()
            raise
        return bool(plan)

    def abandon(self) -> list[Scheduled]:
        """See `Calls`."""
        return []


def check_plan(plan: Sequence[Scheduled]) -> None:
    """Raises a ValueError when one request has two entries."""
    planned: set[Any] = set()
    for entry in plan:
        if entry.sequence in planned:
            raise ValueError(
                f"request {entry.sequence.request_id} is planned twice in one step: `plan_step` adds one entry for a"
                " request, so call `plan_decodes` and `plan_prompts` at most once each"
            )
        planned.add(entry.sequence)


def put_prompt_rows_into(batch: PackedBatch, call: Sequence[Scheduled]) -> None:
    """Adds the rows of prompts whose tokens get log-probabilities."""
    for entry, first in zip(call, batch.query_start, strict=False):
        for position in entry.sequence.prompt_positions(entry.start, entry.stop):
            batch.prompt_rows.append(PromptRow(entry.sequence, position))
            batch.sample_rows.append(first + position - entry.start)
