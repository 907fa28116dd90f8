"""Request-level static batching: a batch is formed once, and ends when its last request has ended."""

from ..batching.hybrid_scheduler import HybridScheduler
from ..batching.packing import Scheduled
from .whole_prompts import WholePrompts


class StaticBatching(WholePrompts):
    """Computes the prompts of a batch, then decodes until all its requests have ended. None joins meanwhile.

    A request that ends early keeps its place and is delivered with the last one, as in servers that take and return
    whole batches.
    """

    def plan_step(self, plan: list[Scheduled]) -> None:
        if self.running:
            self.plan_decodes(plan)
        else:
            self.plan_prompts(plan)

    def remove_ended(self) -> None:
        if all(sequence.is_done for sequence in self.running):
            HybridScheduler.remove_ended(self)
