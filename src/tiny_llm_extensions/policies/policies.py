"""The policies of the literature that are not tasks: each plans the steps of a scheduler that it is handed.

`policies/__init__.py` of a solution puts them on its scheduler.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from tiny_llm_engine.request_life import SequenceState
from tiny_llm_engine.scheduled import Scheduled
from tiny_llm_engine.solutions.solution_types import HybridScheduler


class Policy(ABC):
    """Decides what a step computes. One scheduler has one."""

    cuts_prompts = False  # whether a prompt may take several steps

    @abstractmethod
    def plan_step(self, scheduler: HybridScheduler, plan: list[Scheduled]) -> None:
        """Fills an empty plan, with one entry per request at most."""

    def lets_leave(self, running: Sequence[SequenceState]) -> bool:
        """Whether requests that have ended leave now."""
        return True


class StaticBatching(Policy):
    """Request-level static batching: computes the prompts of a batch, then decodes until all its requests have ended.

    None joins meanwhile. A request that ends early keeps its place and is delivered with the last one, as in servers
    that take and return whole batches.
    """

    def plan_step(self, scheduler: HybridScheduler, plan: list[Scheduled]) -> None:
        if scheduler.running:
            scheduler.plan_decodes(plan)
        else:
            scheduler.plan_prompts(plan)

    def lets_leave(self, running: Sequence[SequenceState]) -> bool:
        return all(sequence.is_done for sequence in running)


class DecodeFirst(Policy):
    """Decode-first, as in FasterTransformer: no prompt is computed while any request decodes.

    Answers never stall. A prompt waits for the longest answer that was begun before it.
    """

    def plan_step(self, scheduler: HybridScheduler, plan: list[Scheduled]) -> None:
        scheduler.plan_decodes(plan)
        if not plan:
            scheduler.plan_prompts(plan)


class PrefillFirst(Policy):
    """Prefill-first, the default of vLLM before chunked prefill: whole prompts go before every decode.

    The batch fills quickly, which is good for throughput. Every answer stalls while prompts arrive.
    """

    def plan_step(self, scheduler: HybridScheduler, plan: list[Scheduled]) -> None:
        scheduler.plan_prompts(plan)
        if not plan:
            scheduler.plan_decodes(plan)


class ChunksOnly(Policy):
    """Chunks without hybrid batches: after a step of chunks, every request that is ready decodes.

    No answer waits longer than one chunk. The weights are read once for the chunk and once for the decodes.
    """

    cuts_prompts = True

    def __init__(self):
        self._had_prompts = False  # what the last step computed

    def plan_step(self, scheduler: HybridScheduler, plan: list[Scheduled]) -> None:
        first, second = scheduler.plan_prompts, scheduler.plan_decodes
        if self._had_prompts:
            first, second = second, first
        first(plan)
        if not plan:
            second(plan)
        self._had_prompts = not all(entry.is_decode for entry in plan)


class SarathiServe(Policy):
    """Sarathi-Serve (Agrawal et al., 2024, algorithm 3): decodes, then chunks in what is left of the budget.

    The plan of Day 3.3: every decode is in every step, and one budget bounds how long the step takes.
    """

    cuts_prompts = True

    def plan_step(self, scheduler: HybridScheduler, plan: list[Scheduled]) -> None:
        scheduler.plan_decodes(plan)
        scheduler.plan_prompts(plan)
