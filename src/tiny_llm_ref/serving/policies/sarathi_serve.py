"""Sarathi-Serve (Agrawal et al., 2024, algorithm 3): decodes, then chunks of prompts in what is left of the budget."""

from ..batching.hybrid_scheduler import HybridScheduler
from ..batching.packing import Scheduled


class SarathiServe(HybridScheduler):
    """The plan of Day 3.3: every decode is in every step, and one budget bounds how long the step takes."""

    def plan_step(self, plan: list[Scheduled]) -> None:
        self.plan_decodes(plan)
        self.plan_prompts(plan)
