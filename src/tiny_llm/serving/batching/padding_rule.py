"""What padding takes from the prompts of a step (Day 3.4). Given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .packing import Scheduled
from .padded_budget import delay_padding, least_budget, room_for_prompts

if TYPE_CHECKING:  # the buckets make this rule
    from ..buckets.buckets import Buckets


class PaddingRule:
    """Counts padded tokens, which is what the model computes (Day 3.4).

    Args:
        buckets: what the calls are padded to.
        mixed_steps: whether a step is one call.
        has_chunks: whether a prompt may be cut.
    """

    def __init__(self, buckets: Buckets, *, mixed_steps: bool, has_chunks: bool):
        self.buckets, self.mixed_steps, self.has_chunks = buckets, mixed_steps, has_chunks

    def limit(self, left: int, decodes: int) -> int:
        """See `PromptRule`."""
        budget = max(left + decodes, least_budget(self.buckets, self.mixed_steps))
        return room_for_prompts(budget, decodes, self.buckets, separate=not self.mixed_steps)

    def trim(self, plan: list[Scheduled], calls: Sequence[Sequence[Scheduled]]) -> None:
        """See `PromptRule`."""
        if self.has_chunks:
            delay_padding(plan, calls, self.buckets)
