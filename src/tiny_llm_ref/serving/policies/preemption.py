"""Preemption by class: which requests give up slots and blocks, and for which."""

from tiny_llm_engine.admission import ServingState

from ..batching.hybrid_scheduler import HybridScheduler
from ..batching.sequence import Sequence


class PreemptingScheduler(HybridScheduler):
    """Preempts by class: for slots and blocks of a request that waits, and for blocks of one that runs.

    Requests of equal rank never preempt each other, so no slot alternates between two of them.

    Args:
        state: see `HybridScheduler`.
        max_preemptions: how often a batch request makes way; after that it counts as an interactive one.
    """

    def __init__(self, state: ServingState[Sequence], *, max_preemptions: int = 4):
        super().__init__(state)
        self.max_preemptions = max_preemptions

    def may_begin(self, sequence: Sequence) -> bool:
        """Whether a request that waits may begin, besides its place."""
        return True

    def victims(self) -> list[Sequence]:
        """Running requests that make way for interactive ones, in the order in which they do.

        Returns:
            Batch requests that were preempted fewer than `max_preemptions` times: first those preempted least often,
            of those the youngest first.
        """
        # TASK 3.5.4: `running` is in the order of admission. Sorting keeps the order of equals.
        batch = [one for one in reversed(self.running) if self.may_preempt(one)]
        return sorted(batch, key=lambda one: one.num_preemptions)

    def may_preempt(self, sequence: Sequence) -> bool:
        """Whether a request makes way for interactive ones. Given."""
        return sequence.priority == "batch" and sequence.num_preemptions < self.max_preemptions

    def make_room(self, sequence: Sequence) -> bool:
        """Reserves blocks for all known tokens of a running request, by preemption if there are too few.

        The last of `running` goes first: its decode is not planned yet. Blocks that were freed and are not back yet are
        on their way: the request waits for them, and nobody else is preempted.

        Returns:
            Whether it has its blocks. If not, it was preempted itself, or waits for a step.
        """
        missing = sequence.block_table.missing(len(sequence.known_tokens))
        while not self.allocator.can_allocate(missing, keep_watermark=False):
            if missing <= self.allocator.num_free + self.num_returning:
                return False
            victim = self.running[-1]
            self.preempt(victim)
            if victim is sequence:
                return False
        sequence.block_table.reserve(len(sequence.known_tokens))
        return True
