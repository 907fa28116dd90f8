"""Decode-first, as in FasterTransformer: no prompt is computed while anybody decodes."""

from ..packing import Scheduled
from .whole_prompts import WholePrompts


class DecodeFirst(WholePrompts):
    """Decodes as long as anybody is ready to; then computes the prompts that wait.

    Answers never stall. A prompt waits for the longest answer that was begun before it.
    """

    def plan_step(self, plan: list[Scheduled]) -> None:
        self.plan_decodes(plan)
        if not plan:
            self.plan_prompts(plan)
