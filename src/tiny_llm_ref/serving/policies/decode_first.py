"""Decode-first, as in FasterTransformer: no prompt is computed while any request decodes."""

from ..batching.packing import Scheduled
from .whole_prompts import WholePrompts


class DecodeFirst(WholePrompts):
    """Decodes while any request is ready to decode; then computes the waiting prompts.

    Answers never stall. A prompt waits for the longest answer that was begun before it.
    """

    def plan_step(self, plan: list[Scheduled]) -> None:
        self.plan_decodes(plan)
        if not plan:
            self.plan_prompts(plan)
