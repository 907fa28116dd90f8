"""The policies of the literature and of this course, by name: Day 3.5.

All are the loop of Day 3.3 with another plan. The day's tasks are the profile of steps and the budget
under a target (`step_profile`), Orca, paced prefill, ageing, slack and preemption by class; the other
policies are given, in `tiny_llm_given/serving/policies.py`.
"""

from typing import Any

from tiny_llm_common.packed_model import PackedModel
from tiny_llm_common.scheduled import Scheduled
from tiny_llm_given.serving import policies

from ..async_scheduling.async_scheduler import run_ahead
from ..batching.hybrid_scheduler import HybridScheduler
from ..blocks.block_allocator import BlockAllocator
from ..parallel.pipelined_scheduler import PipelinedScheduler
from .mixing import Orca, PacedPrefill
from .slack import SlackScheduler


class PolicyScheduler(HybridScheduler):
    """A `HybridScheduler` whose steps are planned by a policy that is handed to it."""

    make_policy: type[policies.Policy]

    def __init__(self, model: PackedModel, allocator: BlockAllocator, **options: Any):
        super().__init__(model, allocator, **options)
        self.policy = self.make_policy()

    def plan_step(self, plan: list[Scheduled]) -> None:
        self.policy.plan_step(self, plan)

    def remove_ended(self) -> None:
        if self.policy.lets_leave(self.running):
            super().remove_ended()


def with_policy(policy: type[policies.Policy]) -> type[PolicyScheduler]:
    """The class of schedulers that this policy plans for."""
    parts = {"make_policy": policy, "cuts_prompts": policy.cuts_prompts, "__doc__": policy.__doc__}
    return type(policy.__name__, (PolicyScheduler,), parts)


StaticBatching = with_policy(policies.StaticBatching)
DecodeFirst = with_policy(policies.DecodeFirst)
PrefillFirst = with_policy(policies.PrefillFirst)
ChunksOnly = with_policy(policies.ChunksOnly)
SarathiServe = with_policy(policies.SarathiServe)

POLICIES: dict[str, type[HybridScheduler]] = {
    "static": StaticBatching,
    "decode-first": DecodeFirst,
    "prefill-first": PrefillFirst,
    "orca": Orca,
    "chunks-only": ChunksOnly,
    "sarathi": SarathiServe,
    "paced": PacedPrefill,
    "slack": SlackScheduler,
}


def make_scheduler(
    name: str,
    model: PackedModel,
    allocator: BlockAllocator,
    /,
    *,
    async_scheduling: bool = False,
    **options: Any,
) -> HybridScheduler:
    """A scheduler by the name of its policy.

    Args:
        name: a key of `POLICIES`; or "hybrid" or "separate", which are `HybridScheduler` with and without mixed steps.
        model, allocator, options: as the policy's class takes them. A model in several stages needs "hybrid".
        async_scheduling: whether a step is planned while the one before it computes, see `AsyncScheduler`. The model
            is a `PipelinedModel` then. Not for "separate", whose steps are two calls.

    Raises:
        ValueError: there is no such policy, or an option is out of range.
    """
    stages: Any = model
    kinds = {"hybrid": HybridScheduler, **POLICIES}
    if async_scheduling and name in kinds:
        return run_ahead(kinds[name])(stages, allocator, **options)
    if getattr(model, "num_stages", 1) > 1:
        if name != "hybrid":
            raise ValueError(f'policy is {name!r}: with several steps in flight give "hybrid"')
        return PipelinedScheduler(stages, allocator, **options)
    if name in ("hybrid", "separate"):
        return HybridScheduler(model, allocator, mixed_steps=name == "hybrid", **options)
    if name not in POLICIES:
        raise ValueError(f"policy is {name!r}: give one of {', '.join(['hybrid', 'separate', *POLICIES])}")
    return POLICIES[name](model, allocator, **options)
