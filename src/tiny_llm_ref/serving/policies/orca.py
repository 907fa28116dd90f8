"""Orca (Yu et al., 2022): requests join and leave at every step, and a step mixes decodes with whole prompts."""

from tiny_llm_common.scheduled import Scheduled

from ..batching.hybrid_scheduler import HybridScheduler


class Orca(HybridScheduler):
    """Decodes in every step, and prompts beside them, each as a whole.

    No request waits for a batch to end. A decode waits for the whole of a prompt that shares its step.
    """

    cuts_prompts = False  # so `plan_prompts` adds whole prompts or none

    def plan_step(self, plan: list[Scheduled]) -> None:
        # TASK 3.5.3: iteration-level scheduling. `plan_decodes` and `plan_prompts` are those of Day 3.3.
        self.plan_decodes(plan)
        self.plan_prompts(plan)
