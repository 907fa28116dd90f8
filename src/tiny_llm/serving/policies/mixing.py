"""Which kinds of work a step mixes: Orca computes both in every step, paced prefill never."""

from typing import Any

from tiny_llm_common.packed_model import PackedModel
from tiny_llm_common.scheduled import Scheduled

from ..batching.hybrid_scheduler import HybridScheduler
from ..blocks.block_allocator import BlockAllocator


class Orca(HybridScheduler):
    """Decodes in every step, and prompts beside them, each as a whole (Yu et al., 2022).

    No request waits for a batch to end. A decode waits for the whole of a prompt that shares its step.
    """

    cuts_prompts = False  # so `plan_prompts` adds whole prompts or none

    def plan_step(self, plan: list[Scheduled]) -> None:
        # TASK 3.5.3: iteration-level scheduling. `plan_decodes` and `plan_prompts` are those of Day 3.3.
        raise NotImplementedError("week 3 day 5 task 3: Orca.plan_step")


class PacedPrefill(HybridScheduler):
    """Spaces the steps of chunks, for engines whose mixed steps cost more than they save.

    Args:
        decodes_between: steps of decodes after a step of chunks, while anybody is ready to decode.
        options: as `HybridScheduler` takes them.

    Raises:
        ValueError: `decodes_between` is below 1.
    """

    def __init__(
        self, model: PackedModel, allocator: BlockAllocator, *, decodes_between: int = 4, **options: Any
    ):
        if decodes_between < 1:
            raise ValueError(f"decodes_between is {decodes_between}: give at least 1, or use prefill-first")
        super().__init__(model, allocator, **options)
        self.decodes_between = decodes_between
        self._decodes_left = 0  # steps of decodes until prompts may go again

    def plan_step(self, plan: list[Scheduled]) -> None:
        # TASK 3.5.3: never both kinds in one step. When nobody is ready to decode, prompts need not wait.
        raise NotImplementedError("week 3 day 5 task 3: PacedPrefill.plan_step")
