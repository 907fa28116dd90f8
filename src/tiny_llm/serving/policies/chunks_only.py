"""Chunks without hybrid batches: a step of chunks, then a step of decodes, in turn."""

from ..batching.hybrid_scheduler import HybridScheduler
from ..batching.packing import Scheduled


class ChunksOnly(HybridScheduler):
    """Alternates: after a step of chunks, every request that is ready decodes.

    No answer waits longer than one chunk. The weights are read once for the chunk and once for the decodes.
    """

    _had_prompts = False  # what the last step computed

    def plan_step(self, plan: list[Scheduled]) -> None:
        first, second = self.plan_prompts, self.plan_decodes
        if self._had_prompts:
            first, second = second, first
        first(plan)
        if not plan:
            second(plan)
        self._had_prompts = not all(entry.is_decode for entry in plan)
