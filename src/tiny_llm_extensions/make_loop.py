"""A loop of steps with all that is put on it, in the order in which it acts."""

import time
from collections.abc import Callable
from typing import Any

from tiny_llm_engine.admission import FifoQueue, ServingState, WaitingLine
from tiny_llm_engine.chunked_prefill.chunk_sizes import Chunker
from tiny_llm_engine.events import EventQueue, Listener
from tiny_llm_engine.limits import Limits
from tiny_llm_engine.packed_model import PackedModel
from tiny_llm_engine.solutions.solution_types import (
    AnswerSequence,
    BlockAllocator,
    HybridScheduler,
    ServingPackage,
)
from tiny_llm_engine.step_loop import StepLoop

from .asynchronous.ahead import Ahead
from .cold_blocks.returns import ColdParts, Returns
from .drafts.drafting import Drafting
from .drafts.proposals import Proposals
from .parallel.pipeline import Pipeline, share_decodes
from .policies.prompt_rules import ChunkerRule, PaddedSteps


def make_loop(
    names: ServingPackage,
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
    queue: WaitingLine[AnswerSequence] | None = None,
    can_join: Callable[[AnswerSequence, AnswerSequence], bool] | None = None,
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
) -> StepLoop[AnswerSequence]:
    """A loop whose steps a policy plans, with all that is put on it.

    Args:
        names: the module `serving` of a solution.
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
    kind = kind_of(names, policy)
    stages: int = getattr(model, "num_stages", 1) if num_stages is None else num_stages
    if stages > 1 and kind is not names.HybridScheduler and not async_scheduling:
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
        Drafting.put_on(loop, names, drafts, most_rows)
    if async_scheduling:
        Ahead.put_on(loop, names)
    elif stages > 1:
        loop.calls = Pipeline(loop, names.fill_stages)
        share_decodes(loop, stages)
    return loop


def kind_of(names: ServingPackage, policy: str | type[HybridScheduler]) -> type[HybridScheduler]:
    """The class of a policy.

    Raises:
        ValueError: there is no such policy.
    """
    if not isinstance(policy, str):
        return policy
    kinds = {"hybrid": names.HybridScheduler, "separate": names.HybridScheduler, **names.POLICIES}
    if policy not in kinds:
        raise ValueError(f"policy is {policy!r}: give one of {', '.join(kinds)}")
    return kinds[policy]
