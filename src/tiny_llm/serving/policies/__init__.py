"""The policies of the literature and of this course, by name: Day 3.5.

All are the loop of Day 3.3 with another plan. The day's tasks are the profile of steps and the budget
under a target (`step_profile`), Orca, paced prefill, ageing, slack and preemption by class; the other
policies are given, in `tiny_llm_extensions/policies/policies.py`.
"""

from tiny_llm_engine.admission import ServingState
from tiny_llm_engine.scheduled import Scheduled
from tiny_llm_extensions.policies import policies

from ..batching.hybrid_scheduler import HybridScheduler
from ..batching.sequence import Sequence
from .mixing import Orca, PacedPrefill
from .slack import SlackScheduler


class PolicyScheduler(HybridScheduler):
    """A `HybridScheduler` whose steps are planned by a policy that is handed to it."""

    make_policy: type[policies.Policy]

    def __init__(self, state: ServingState[Sequence]):
        super().__init__(state)
        self.policy = self.make_policy()

    def plan_step(self, plan: list[Scheduled]) -> None:
        self.policy.plan_step(self, plan)

    def lets_leave(self) -> bool:
        return self.policy.lets_leave(self.running)


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
