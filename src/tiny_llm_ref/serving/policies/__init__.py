"""The policies of the literature and of this course, by name: Day 3.5.

All are the loop of Day 3.3 with another plan. The day's tasks are the profile of steps and the budget
under a target (`step_profile`), Orca, paced prefill, ageing, slack and preemption by class; the other
policies are given, in `tiny_llm_extensions/policies/policies.py`.
"""

import time
from collections.abc import Callable
from typing import Any

from tiny_llm_engine.admission import ServingState
from tiny_llm_engine.chunk_sizes import Chunker
from tiny_llm_engine.events import EventQueue, Listener
from tiny_llm_engine.limits import Limits
from tiny_llm_engine.packed_model import PackedModel
from tiny_llm_engine.request_life import FifoQueue, WaitingLine
from tiny_llm_engine.scheduled import Scheduled
from tiny_llm_engine.step_loop import StepLoop
from tiny_llm_extensions.asynchronous.ahead import Ahead, AheadTasks
from tiny_llm_extensions.cold_blocks.returns import ColdParts, Returns
from tiny_llm_extensions.drafts.drafting import Drafting, DraftTasks
from tiny_llm_extensions.drafts.proposals import Proposals
from tiny_llm_extensions.parallel.pipeline import Pipeline, share_decodes
from tiny_llm_extensions.policies import policies
from tiny_llm_extensions.policies.prompt_rules import ChunkerRule, PaddedSteps

from ..async_scheduling.placeholders import can_decode_ahead, make_room_ahead, pack_ahead
from ..batching.hybrid_scheduler import HybridScheduler
from ..batching.sequence import Sequence
from ..blocks.block_allocator import BlockAllocator
from ..parallel.fill_stages import fill_stages
from ..speculation.drafts import pack_drafts, plan_drafts, rewind, verify
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


def make_loop(
    policy: str | type[HybridScheduler],
    model: PackedModel,
    allocator: BlockAllocator,
    /,
    *,
    max_num_batched_tokens: int = 512,
    max_num_seqs: int = 16,
    enable_chunked_prefill: bool = True,
    mixed_steps: bool = True,
    long_prefill_token_threshold: int = 0,
    queue: WaitingLine[Sequence] | None = None,
    can_join: Callable[[Sequence, Sequence], bool] | None = None,
    cold: ColdParts | None = None,
    buckets: PaddedSteps | None = None,
    chunker: Chunker | None = None,
    drafts: Proposals | None = None,
    async_scheduling: bool = False,
    num_stages: int | None = None,
    clock: Callable[[], float] = time.perf_counter,
    metrics: Any = None,
    on_event: Listener | None = None,
    **of_policy: Any,
) -> StepLoop[Sequence]:
    """A loop whose steps a policy plans, with all that is put on it.

    Args:
        policy: a key of `POLICIES`; "hybrid" or "separate", which are `HybridScheduler` with and without mixed steps;
            or a class like these.
        model: computes the calls; with several stages it needs "hybrid".
        allocator: the blocks of the model's pools.
        max_num_batched_tokens, max_num_seqs, enable_chunked_prefill, mixed_steps, long_prefill_token_threshold: see
            `Limits`.
        queue, can_join: see `ServingState`.
        cold: blocks outside the pool.
        buckets: what the model pads its calls to; then the budget counts padded tokens.
        chunker: chooses how many tokens of prompts a step with decodes may have, from what such steps have cost.
        drafts: which requests have how many drafts.
        async_scheduling: whether a step is planned while the one before it computes, see `Ahead`. The model is a
            `PipelinedModel` then. Not for "separate", whose steps are two calls.
        num_stages: stages of the model, each of which has a call in flight; as many as it says when None.
        clock: seconds.
        metrics: its `on_event` is called with each event, as that of `ChunkedPrefillMetrics`.
        on_event: called with each event. It may call `abort` of any request.
        of_policy: further options of the policy's class.

    Raises:
        TypeError: the policy has no such option.
        ValueError: there is no such policy, an option is out of range, or two of them exclude each other.
    """
    kind = kind_of(policy)
    stages: int = getattr(model, "num_stages", 1) if num_stages is None else num_stages
    if stages > 1 and kind is not HybridScheduler and not async_scheduling:
        raise ValueError(f'policy is {policy!r}: with several steps in flight give "hybrid"')
    limits = Limits(
        max_num_batched_tokens=max_num_batched_tokens,
        max_num_seqs=max_num_seqs,
        enable_chunked_prefill=enable_chunked_prefill and kind.cuts_prompts,
        mixed_steps=mixed_steps and policy != "separate",
        long_prefill_token_threshold=long_prefill_token_threshold,
    )
    limits.check(model.max_model_len)
    listeners = [] if metrics is None else [metrics.on_event]
    events = EventQueue(listeners if on_event is None else [*listeners, on_event])
    state = ServingState(allocator, limits, FifoQueue() if queue is None else queue, can_join, events)
    loop = StepLoop(model, kind(state, **of_policy), clock=clock)

    # In the order in which they act. Each is there only if it was asked for.
    if cold is not None:
        Returns.put_on(loop.state, cold)
    if buckets is not None:
        buckets.put_on(loop.state)
    if chunker is not None:
        ChunkerRule.put_on(loop.state, chunker)
    if drafts is not None:
        most_rows = max_num_batched_tokens if buckets is None else buckets.max_num_seqs
        Drafting.put_on(loop, DraftTasks(plan_drafts, pack_drafts, verify, rewind), drafts, most_rows)
    if async_scheduling:
        Ahead.put_on(loop, AheadTasks(can_decode_ahead, make_room_ahead, pack_ahead), fill_stages)
    elif stages > 1:
        loop.calls = Pipeline(loop, fill_stages)
        share_decodes(loop, stages)
    return loop


def kind_of(policy: str | type[HybridScheduler]) -> type[HybridScheduler]:
    """The class of a policy.

    Raises:
        ValueError: there is no such policy.
    """
    if not isinstance(policy, str):
        return policy
    kinds = {"hybrid": HybridScheduler, "separate": HybridScheduler, **POLICIES}
    if policy not in kinds:
        raise ValueError(f"policy is {policy!r}: give one of {', '.join(kinds)}")
    return kinds[policy]
