"""A KV pool that begins small and doubles when no block is free, up to its limit and while RAM is free.

Cached prefixes are evicted before it grows, because the allocator knows only the blocks that are there. Without this
file a pool has all its blocks from the start.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tiny_llm_engine.admission import ServingState
from tiny_llm_engine.machine.ram import free_ram
from tiny_llm_engine.packed_runner import PackedRunner
from tiny_llm_engine.scheduled import Scheduled
from tiny_llm_engine.solutions.solution_types import AnswerSequence, BlockAllocator
from tiny_llm_engine.step_loop import StepLoop

TYPICAL_TOKENS = 384  # of a prompt and its answer
MOST_OF_FREE = 0.5  # share of the free RAM that the pool may grow by
NO_MEMORY = "the KV pool has {} blocks, and this machine has no free memory for more: end other programs"


def typical_blocks(max_num_seqs: int, block_size: int, most: int) -> int:
    """Blocks that `max_num_seqs` requests of typical length need, and no more than `most`."""
    return min(most, max_num_seqs * -(-TYPICAL_TOKENS // block_size))


@dataclass(eq=False)
class GrowingPool:
    """Grows the blocks of an allocator, a runner and its pools together, while a step is planned.

    No call of the model is in flight then. For one device, whose steps are computed one after the other.

    Args:
        runner: has the pools, and `most_blocks` is their limit.
        block_bytes: bytes of a block in all layers.

    Attributes:
        is_refused: whether the pool should have grown, and no memory was free.
        state: of the loop that it is put on.
    """

    runner: PackedRunner
    block_bytes: int
    is_refused: bool = field(default=False, init=False)
    state: ServingState[AnswerSequence] = field(init=False)

    def put_on(self, loop: StepLoop[AnswerSequence]) -> None:
        """Lets the allocator of a loop grow."""
        allocator: Any = loop.allocator
        has_free = allocator.can_allocate

        def can_allocate(count: int, *, keep_watermark: bool = True) -> bool:
            while not has_free(count, keep_watermark=keep_watermark):
                if not self.grow(allocator):
                    if self.is_refused and self not in loop.hooks.plan:  # before that no step asks it
                        loop.hooks.plan.append(self)
                    return False
            return True

        allocator.can_allocate = can_allocate
        self.state = loop.state

    def grow(self, allocator: BlockAllocator) -> bool:
        """Doubles the pool, up to its limit. Returns whether it did."""
        blocks = min(2 * allocator.num_blocks, self.runner.most_blocks)
        if blocks <= allocator.num_blocks:
            return False
        self.is_refused = (blocks - allocator.num_blocks) * self.block_bytes > MOST_OF_FREE * free_ram()
        if self.is_refused:
            return False
        for pool in self.runner.pools:
            pool.resize(blocks)
        self.runner.num_blocks = blocks
        allocator.grow(blocks)
        return True

    def limit(self, left: int, decodes: int) -> int:
        """As a `PlanHook`: changes nothing."""
        return left

    def change(self, plan: list[Scheduled], calls: Sequence[Sequence[Scheduled]]) -> None:
        """As a `PlanHook`: ends the next request if nothing runs, and there is no memory for the blocks it needs."""
        waiting = self.state.waiting
        if self.is_refused and not plan and not self.state.running and waiting.returned:
            waiting.returned[0].fail(NO_MEMORY.format(self.runner.num_blocks))
            waiting.is_full = False  # the next step goes on with the others

    def in_words(self) -> str:
        """The sizes of the pool, in one line."""
        runner, size = self.runner, self.block_bytes / 1e6
        return (
            f"{runner.num_blocks:,} KV blocks of {runner.block_size} tokens ({runner.num_blocks * size:,.0f} MB); "
            f"grows to {runner.most_blocks:,} ({runner.most_blocks * size:,.0f} MB) when requests need them"
        )
