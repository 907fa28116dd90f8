"""Prefill-first, the default of vLLM before chunked prefill: whole prompts go before every decode."""

from ..batching.packing import Scheduled
from .whole_prompts import WholePrompts


class PrefillFirst(WholePrompts):
    """Computes prompts while there is room for one; decodes in the other steps.

    The batch fills quickly, which is good for throughput. Every answer stalls while prompts arrive.
    """

    def plan_step(self, plan: list[Scheduled]) -> None:
        self.plan_prompts(plan)
        if not plan:
            self.plan_decodes(plan)
