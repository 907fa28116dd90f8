"""Hybrid batches: decodes, then chunks of prompts, under one token budget (Sarathi-Serve, Agrawal et al., 2024)."""

from tiny_llm_engine.admission import ServingState
from tiny_llm_engine.scheduled import Scheduled

from ..blocks.block_table import BlockTable
from .sequence import Sequence, pack


class HybridScheduler:
    """Decides what each step computes: decodes, then chunks of prompts. Integers alone; calls no model.

    Each step has one budget of tokens for all requests together. Every running request that is ready to decode gets one
    token of it; the rest goes to chunks of prompts, in the order in which they were admitted. A request is admitted
    when there are blocks for all its known tokens. A decode that finds no block preempts the youngest request, which is
    computed again later.

    `StepLoop` calls it: it plans a step, has the model compute it, and records the results.

    Args:
        state: the requests that wait and run, and their blocks.
    """

    new_table, pack = BlockTable, staticmethod(pack)  # which the loop calls
    cuts_prompts = True  # False in a policy that computes whole prompts, whatever the options say
    num_returning = 0  # blocks that were freed and come back later, in an engine that overlaps its steps

    def __init__(self, state: ServingState[Sequence]):
        self.state, self.allocator = state, state.allocator
        self.running, self.waiting = state.running, state.waiting
        limits = self.limits = state.limits
        self.max_num_batched_tokens, self.max_num_seqs = limits.max_num_batched_tokens, limits.max_num_seqs
        self.longest_chunk = limits.longest_chunk

    def plan_step(self, plan: list[Scheduled]) -> None:
        """Fills an empty plan, with one entry per request at most. The policies of Day 3.5 differ here. Given."""
        if self.limits.enable_chunked_prefill:
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
        if not missing:  # most tokens have room in the last block
            return True
        while not self.allocator.can_allocate(missing, keep_watermark=False):
            youngest = self.running[-1]
            self.preempt(youngest)
            if youngest is sequence:
                return False
        sequence.block_table.reserve(len(sequence.known_tokens))
        return True

    def plan_prompts(self, plan: list[Scheduled]) -> None:
        """Adds chunks: first of running requests that are not ready to decode, then of newly admitted ones."""
        if len(plan) == len(self.running) and not len(self.waiting):  # as in most steps: all decode
            return
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
        if sequence.num_uncomputed <= 0:  # all that is known is on its way
            return 0
        size = min(left, sequence.num_uncomputed, self.longest_chunk)
        plan.append(Scheduled(sequence, sequence.num_scheduled, size))
        return size

    def prompt_budget(self, plan: list[Scheduled]) -> int:
        """How many tokens of prompts the step may have beside the decodes that are planned. Given."""
        left = self.max_num_batched_tokens - len(plan)
        for hook in self.state.hooks.plan:
            left = hook.limit(left, len(plan))
        return left

    def preempt(self, sequence: Sequence) -> None:
        """Takes a running request's place and blocks away, until another one has left. Given."""
        self.running.remove(sequence)
        sequence.num_in_flight = 0  # what is in flight of it is dropped when it comes back
        sequence.preempt()
        self.waiting.put_back(sequence)
        self.state.emit("preempt", sequence)

    def calls(self, plan: list[Scheduled]) -> list[list[Scheduled]]:
        """The calls of the model that compute a plan, none of them empty. Given."""
        if self.limits.mixed_steps:
            return [plan] if plan else []
        kinds = [[entry for entry in plan if entry.is_decode is decodes] for decodes in (False, True)]
        return [kind for kind in kinds if kind]

    def lets_leave(self) -> bool:
        """Whether requests that have ended leave now. Given."""
        return True
