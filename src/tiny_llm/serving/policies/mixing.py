"""Which kinds of work a step mixes: Orca computes both in every step, paced prefill never."""

from tiny_llm_engine.admission import ServingState
from tiny_llm_engine.scheduled import Scheduled

from ..batching.hybrid_scheduler import HybridScheduler
from ..batching.sequence import Sequence


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
        state: see `HybridScheduler`.
        decodes_between: steps of decodes after a step of chunks, while anybody is ready to decode.

    Raises:
        ValueError: `decodes_between` is below 1.
    """

    def __init__(self, state: ServingState[Sequence], *, decodes_between: int = 4):
        if decodes_between < 1:
            raise ValueError(f"decodes_between is {decodes_between}: give at least 1, or use prefill-first")
        super().__init__(state)
        self.decodes_between = decodes_between
        self._decodes_left = 0  # steps of decodes until prompts may go again

    def plan_step(self, plan: list[Scheduled]) -> None:
        # TASK 3.5.3: never both kinds in one step. When nobody is ready to decode, prompts need not wait.
        raise NotImplementedError("week 3 day 5 task 3: PacedPrefill.plan_step")
