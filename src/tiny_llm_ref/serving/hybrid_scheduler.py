"""Hybrid batches: decodes, then chunks of prompts, under one token budget (Sarathi-Serve, Agrawal et al., 2024)."""

import time
from collections import abc, deque
from collections.abc import Callable
from typing import Any

from .admission import Admission
from .block_allocator import BlockAllocator
from .block_table import BlockTable
from .buckets import Buckets
from .chunk_size import Chunker
from .completion import Completion
from .events import Event, Listener
from .hybrid_options import check_options, least_budget
from .model import PackedModel, Sampled
from .packing import Scheduled, check_plan, pack
from .padded_budget import delay_padding, room_for_prompts
from .request_queue import RequestQueue
from .sequence import Sequence
from .step_parts import step_parts


class HybridScheduler:
    """Serves requests in steps: a plan in integers, one call of the model, and its results.

    Each step has one budget of tokens for all requests together. Every running request that is ready to decode gets one
    token of it; the rest goes to chunks of prompts, in the order in which they were admitted. A request is admitted
    when there are blocks for all its known tokens. A decode that finds no block preempts the youngest request, which is
    computed again later.

    Args:
        model: what computes a packed batch.
        allocator: the blocks of the model's pools.
        max_num_batched_tokens: the budget, in tokens per step.
        max_num_seqs: how many requests run at the same time.
        enable_chunked_prefill: False computes whole prompts, in steps of their own, before anything decodes.
        policy: "hybrid", or "separate": the same plan in two calls of the model, chunks and then decodes.
        queue: the requests that wait; a `FifoQueue` when None.
        can_join: can_join(one, other) says whether two requests may run at the same time, for example because they need
            the same adapter; None lets any two.
        clock: seconds.
        chunker: chooses how many tokens of prompts a step with decodes may have, from what such steps have cost.
        buckets: what the model pads its calls to; then the budget counts padded tokens. None when nothing is padded.
        metrics: its `on_event` is called with each event, as that of `ChunkedPrefillMetrics`.
        on_event: called with each event. It may call `abort` of any request.

    What the model or `on_event` raises is raised by `step`. A call of the model that fails ends the requests in it. The
    next step serves all others.

    Raises:
        ValueError: a number is out of range, or two options exclude each other.
    """

    def __init__(
        self,
        model: PackedModel,
        allocator: BlockAllocator,
        *,
        max_num_batched_tokens: int = 512,
        max_num_seqs: int = 16,
        enable_chunked_prefill: bool = True,
        policy: str = "hybrid",
        queue: RequestQueue | None = None,
        can_join: Callable[[Sequence, Sequence], bool] | None = None,
        clock: Callable[[], float] = time.perf_counter,
        chunker: Chunker | None = None,
        buckets: Buckets | None = None,
        metrics: Any = None,
        on_event: Listener | None = None,
    ):
        modes = {"enable_chunked_prefill": enable_chunked_prefill, "policy": policy, "chunker": chunker}
        check_options(max_num_batched_tokens, max_num_seqs, model.max_model_len, **modes, buckets=buckets)
        self.model, self.allocator = model, allocator
        self.max_num_batched_tokens, self.max_num_seqs = max_num_batched_tokens, max_num_seqs
        self.enable_chunked_prefill, self.policy = enable_chunked_prefill, policy
        self.clock, self.chunker, self.metrics, self.on_event = clock, chunker, metrics, on_event
        self.buckets, self.can_join = buckets, can_join
        rules = {"whole_prompts": not enable_chunked_prefill, "may_join": self.may_join}
        self.waiting = Admission(allocator, queue, tell=self._note, **rules)
        self.running: list[Sequence] = []  # in the order of their admission: the youngest is the last
        self.is_closed = False
        self._now = 0.0  # when the step, or its last call of the model, began
        self._sequences: list[Sequence] = []  # all that were added and not yet collected
        self._noted: deque[Event] = deque()  # emitted when nothing is half done: a listener may abort anybody

    def add(self, sequence: Sequence) -> None:
        """Queues a request. One that can never be served ends here, with its reason.

        Raises:
            RuntimeError: the scheduler is closed.
        """
        pool_tokens = self.allocator.num_blocks * self.allocator.block_size
        sequence.check(self.model.vocab_size, self.model.max_model_len, pool_tokens)
        self.enqueue(sequence)

    def enqueue(self, sequence: Sequence, parent: Sequence | None = None) -> None:
        """Queues a request that was checked. Given.

        Args:
            sequence: the request; one that has ended leaves at once.
            parent: the answer that computed the same prompt for it: the two have arrived together.

        Raises:
            RuntimeError: the scheduler is closed.
        """
        if self.is_closed:
            raise RuntimeError("this scheduler is closed: make a new one for more requests")
        sequence.block_table = BlockTable(self.allocator)
        sequence.waiting_since = self.clock() if parent is None else parent.waiting_since
        self._sequences.append(sequence)
        if not sequence.is_done:
            self.waiting.add(sequence, parent)
        for kind in ("arrive", "finish") if sequence.is_done else ("arrive",):
            self._emit(Event(kind, sequence.waiting_since, sequence))

    def has_work_remaining(self) -> bool:
        """Whether a request waits or runs."""
        return bool(self.running or len(self.waiting))

    def step(self) -> bool:
        """Plans a step, runs the model, and records the results.

        Returns:
            Whether anything was computed; when not, no work remains.
        """
        try:
            plan = self.plan(self.clock())
            for call in self.calls(plan):
                self._run(call)
        finally:
            for sequence in self.running:  # also those of a call that was not begun
                sequence.end_call()
        return bool(plan)

    def _run(self, call: list[Scheduled]) -> None:
        try:
            sampled = self.model.run(pack(call))
        except BaseException as error:
            self.cancel(call, error)
            raise
        self.commit(call, sampled)

    # First: what runs. Integers alone; only here are blocks reserved and requests preempted.

    def plan(self, now: float) -> list[Scheduled]:
        """Decides what the next step computes. Calls no model and reads no clock; `commit` or `cancel` comes next.

        Args:
            now: seconds, for the events.

        Returns:
            Entries of different requests, decodes first; empty when no work remains.

        Raises:
            ValueError: `plan_step` has planned a request twice.
        """
        self._now = now
        self.remove_ended()
        plan: list[Scheduled] = []
        self.plan_step(plan)
        check_plan(plan)
        if self.buckets is not None and self.enable_chunked_prefill:
            delay_padding(plan, self.calls(plan), self.buckets)
        for entry in plan:
            entry.sequence.begin_call()
        self._emit_noted()
        return plan

    def plan_step(self, plan: list[Scheduled]) -> None:
        """Fills an empty plan, with one entry per request at most. The policies of Day 3.5 differ here. Given."""
        if self.enable_chunked_prefill:
            self.plan_decodes(plan)
        self.plan_prompts(plan)
        if not plan:  # without chunks: a step of whole prompts, else one of decodes
            self.plan_decodes(plan)

    def plan_decodes(self, plan: list[Scheduled]) -> None:
        """Adds one token of each running request that is ready to decode."""
        # TASK 3.3.3: the oldest first, each with a block for its token: `make_room` says whether it has one.
        # No request is left out for the budget: it is at least the number of running requests. Preemption shortens
        # `running` while you walk over it.
        for sequence in list(self.running):
            if sequence.is_decoding and self.make_room(sequence):
                plan.append(Scheduled(sequence, sequence.num_computed, 1))

    def make_room(self, sequence: Sequence) -> bool:
        """Reserves blocks for all known tokens of a running request, by preemption if there are too few.

        Returns:
            Whether it still runs. The youngest request makes room for the others by giving up its own place.
        """
        # TASK 3.3.4: while blocks are missing, preempt the youngest one, and no more than needed.
        # The watermark was kept for this: a running request may use it. A request that runs alone always fits.
        missing = sequence.block_table.missing(len(sequence.known_tokens))
        while not self.allocator.can_allocate(missing, keep_watermark=False):
            youngest = self.running[-1]
            self.preempt(youngest)
            if youngest is sequence:
                return False
        sequence.block_table.reserve(len(sequence.known_tokens))
        return True

    def plan_prompts(self, plan: list[Scheduled]) -> None:
        """Adds chunks: first of requests that run and are not ready to decode, then of those that are admitted now."""
        left = self.prompt_budget(plan)
        # TASK 3.3.5: one budget for all: what one chunk takes, the next cannot have. No empty chunk.
        # `admit` gives the next request that waits, or None. At most `max_num_seqs` requests run.
        for sequence in self.running:
            if left and not sequence.is_decoding:
                left -= self.plan_chunk(plan, sequence, left)
        while left and len(self.running) < self.max_num_seqs:
            admitted = self.waiting.admit(not self.running, left)
            if admitted is None:
                return
            self.running.append(admitted)
            left -= self.plan_chunk(plan, admitted, left)

    def plan_chunk(self, plan: list[Scheduled], sequence: Sequence, left: int) -> int:
        """Adds the next tokens of a request, at most `left` of them. Returns how many. Given."""
        chunk = Scheduled(sequence, sequence.num_computed, min(left, sequence.num_uncomputed))
        plan.append(chunk)
        return chunk.size

    def prompt_budget(self, plan: list[Scheduled]) -> int:
        """How many tokens of prompts the step may have beside the decodes that are planned. Given."""
        left = self.max_num_batched_tokens - len(plan)
        if self.buckets is not None:
            budget = max(self.max_num_batched_tokens, least_budget(self.buckets, self.policy))
            left = room_for_prompts(budget, len(plan), self.buckets, separate=self.policy == "separate")
        has_prompts = len(plan) < len(self.running) or len(self.waiting)
        if self.chunker is None or not plan or not has_prompts:
            return left
        return min(left, self.chunker.select_chunk_size(left, len(plan) / self.max_num_seqs))

    def may_join(self, sequence: Sequence) -> bool:
        """Whether a request that waits may run beside all that run. Given."""
        return self.can_join is None or all(self.can_join(sequence, other) for other in self.running)

    def preempt(self, sequence: Sequence) -> None:
        """Takes a running request's place and blocks away, until another one has left. Given."""
        self.running.remove(sequence)
        sequence.preempt()
        self.waiting.put_back(sequence)
        self._note("preempt", sequence)

    # Second: the model. A plan is one call, or two.

    def calls(self, plan: list[Scheduled]) -> list[list[Scheduled]]:
        """The calls of the model that compute a plan, none of them empty."""
        if self.policy == "hybrid":
            return [plan] if plan else []
        kinds = [[entry for entry in plan if entry.is_decode is decodes] for decodes in (False, True)]
        return [kind for kind in kinds if kind]

    # Third: what came of it.

    def commit(self, plan: abc.Sequence[Scheduled], sampled: abc.Sequence[Sampled]) -> None:
        """Records what a call has computed: keys and values, tokens, ends. Then emits the events.

        Args:
            plan: what was computed.
            sampled: one for each entry that needs a token, in their order.

        Raises:
            ValueError: there are more of them, or fewer.
        """
        parts = step_parts(plan, self.running)
        drawn = [entry.sequence for entry in plan if entry.needs_token]
        for entry in plan:
            entry.sequence.num_computed = entry.stop
            entry.sequence.block_table.register(entry.sequence.known_tokens, entry.stop)
            entry.sequence.end_call()  # a request that was aborted meanwhile ends here, without a token
        for sequence, token in zip(drawn, sampled, strict=True):
            sequence.take_sampled(token)
        start, self._now = self._now, self.clock()
        self._noted.append(Event("step", self._now, start=start, parts=parts))
        for sequence in drawn:
            sequence.token_time = self._now
            if sequence.finish_reason != "abort":
                self._note("token", sequence)
        self._emit_noted()
        self.remove_ended()
        self._emit_noted()

    def cancel(self, plan: abc.Sequence[Scheduled], error: BaseException) -> None:
        """Ends the requests of a failed call, whose writes are unknown, and frees their blocks."""
        for entry in plan:
            entry.sequence.end_call(error)
        self.remove_ended()
        self._emit_noted()

    def collect_results(self) -> list[Completion]:
        """The results of the requests that have ended since the last call, in the order of `prompt_idx`."""
        ended = [sequence for sequence in self._sequences if sequence.is_done]
        self._sequences = [sequence for sequence in self._sequences if not sequence.is_done]
        return sorted(map(Completion.of, ended), key=lambda completion: completion.prompt_idx)

    def close(self) -> None:
        """Ends every request that has not ended, wherever it is, and frees its blocks."""
        self.is_closed = True
        for sequence in self._sequences:
            sequence.end_call()
            sequence.abort()
        self.running.clear()

    def remove_ended(self) -> None:
        """Removes requests that have ended; others can be admitted."""
        ended = [sequence for sequence in self.running if sequence.is_done]
        if ended:
            self.running = [sequence for sequence in self.running if not sequence.is_done]
            self.waiting.is_full = False
        for sequence in ended:
            self._note("finish", sequence)
        if ended and all(sequence.is_done for sequence in self._sequences):  # there may be no further step
            self.waiting.drop_ended()

    def _note(self, kind: str, sequence: Sequence) -> None:
        self._noted.append(Event(kind, self._now, sequence))

    def _emit_noted(self) -> None:
        while self._noted:
            self._emit(self._noted.popleft())

    def _emit(self, event: Event) -> None:
        """Passes an event on: to the chunker what a step with chunks has cost, to the listeners everything."""
        if self.chunker is not None:
            tokens = sum(part.tokens for part in event.parts if part.kind == "chunk")
            if tokens:
                self.chunker.observe(tokens, event.seconds)
        if self.metrics is not None:
            self.metrics.on_event(event)
        if self.on_event is not None:
            self.on_event(event)
