"""Hybrid batches: decodes, then chunks of prompts, under one token budget (Sarathi-Serve, Agrawal et al., 2024)."""

from collections import abc
from typing import Any

from tiny_llm_common.events import Event
from tiny_llm_common.packed_model import PackedModel, Sampled
from tiny_llm_common.scheduled import Scheduled, check_plan, step_parts
from tiny_llm_given.serving.step_loop import StepLoop

from ..blocks.block_allocator import BlockAllocator
from ..blocks.block_table import BlockTable
from .sequence import Sequence, pack


class HybridScheduler(StepLoop[Sequence]):
    """Serves requests in steps: a plan in integers, one call of the model, and its results.

    Each step has one budget of tokens for all requests together. Every running request that is ready to decode gets one
    token of it; the rest goes to chunks of prompts, in the order in which they were admitted. A request is admitted
    when there are blocks for all its known tokens. A decode that finds no block preempts the youngest request, which is
    computed again later.

    Args:
        model, allocator, options: see `StepLoop`.
    """

    def __init__(self, model: PackedModel, allocator: BlockAllocator, **options: Any):
        super().__init__(model, allocator, new_table=BlockTable, pack=pack, **options)

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
        self.now = now
        self.remove_ended()
        self.waiting.bring_back()
        plan: list[Scheduled] = []
        self.plan_step(plan)
        check_plan(plan)
        for rule in self.prompt_rules:
            rule.trim(plan, self.calls(plan))
        for entry in plan:
            entry.sequence.begin_call()
        self.events.deliver()
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
        raise NotImplementedError("week 3 day 3 task 3: HybridScheduler.plan_decodes")

    def make_room(self, sequence: Sequence) -> bool:
        """Reserves blocks for all known tokens of a running request, by preemption if there are too few.

        Returns:
            Whether it still runs. The youngest request makes room for the others by giving up its own place.
        """
        # TASK 3.3.4: while blocks are missing, preempt the youngest one, and no more than needed.
        # The watermark was kept for this: a running request may use it. A request that runs alone always fits.
        raise NotImplementedError("week 3 day 3 task 4: HybridScheduler.make_room")

    def plan_prompts(self, plan: list[Scheduled]) -> None:
        """Adds chunks: first of running requests that are not ready to decode, then of newly admitted ones."""
        left = self.prompt_budget(plan)
        # TASK 3.3.5: one budget for all: what one chunk takes, the next cannot have. No empty chunk.
        # `admit` gives the next request that waits, or None. At most `max_num_seqs` requests run.
        raise NotImplementedError("week 3 day 3 task 5: HybridScheduler.plan_prompts")

    def plan_chunk(self, plan: list[Scheduled], sequence: Sequence, left: int) -> int:
        """Adds the next tokens of a request, at most `left` of them. Returns how many. Given."""
        size = min(left, sequence.num_uncomputed, self.longest_chunk)
        chunk = Scheduled(sequence, sequence.num_scheduled, size)
        plan.append(chunk)
        return chunk.size

    def prompt_budget(self, plan: list[Scheduled]) -> int:
        """How many tokens of prompts the step may have beside the decodes that are planned. Given."""
        left = self.max_num_batched_tokens - len(plan)
        if len(plan) < len(self.running) or len(self.waiting):
            for rule in self.prompt_rules:
                left = rule.limit(left, len(plan))
        return left

    def preempt(self, sequence: Sequence) -> None:
        """Takes a running request's place and blocks away, until another one has left. Given."""
        self.running.remove(sequence)
        sequence.preempt()
        self.waiting.put_back(sequence)
        self.emit("preempt", sequence)

    # Second: the model. A plan is one call, or two.

    def calls(self, plan: list[Scheduled]) -> list[list[Scheduled]]:
        """The calls of the model that compute a plan, none of them empty."""
        if self.mixed_steps:
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
        start, self.now = self.now, self.clock()
        self.events.emit(Event("step", self.now, start=start, parts=parts))
        for sequence in drawn:
            sequence.token_time = self.now
            if sequence.finish_reason != "abort":
                self.emit("token", sequence)
        self.events.deliver()
        self.remove_ended()
        self.events.deliver()

    def remove_ended(self) -> None:
        """Removes requests that have ended; others can be admitted."""
        ended = [sequence for sequence in self.running if sequence.is_done]
        if ended:
            self.running[:] = [sequence for sequence in self.running if not sequence.is_done]
            self.waiting.is_full = False
        for sequence in ended:
            self.emit("finish", sequence)
        if ended and all(sequence.is_done for sequence in self._sequences):  # there may be no further step
            self.waiting.drop_ended()
