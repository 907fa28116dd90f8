"""A scheduler with a latency target: chunks take the time that the answers can spare."""

import math

from tiny_llm_engine.admission import ServingState
from tiny_llm_engine.scheduled import Scheduled
from tiny_llm_extensions.policies.backfill import Backfill
from tiny_llm_extensions.policies.slack_plans import (
    check_slack_options,
    is_turn_of_prompts,
    make_way,
    plan_short_first,
)

from ..batching.sequence import Sequence
from .aged_queue import AgedQueue
from .preemption import PreemptingScheduler
from .step_profile import StepProfile


class SlackScheduler(PreemptingScheduler):
    """Decodes in every step, and chunks that fit into their slack: the time until the first of them is due.

    Prompts go short first, with ageing. An interactive request that has no place takes that of a batch request. A
    request is passed by others only while it has no room, and only if that does not delay it.

    With mixed_steps=False a step is either chunks or decodes: chunks while the decodes can wait for another one.

    Args:
        state: see `HybridScheduler`. Its queue is an `AgedQueue` here.
        profile: what a step costs here.
        latency_target: seconds between two tokens of an answer; None computes chunks as large as the budget.
        tile: the least that is computed of prompts in a step that computes any, and what larger chunks are multiples
            of, decodes included.
        ageing, batch_delay: see `AgedQueue`.
        long_prefill_threshold: tokens; a prompt of which more is left is long. None is the budget of a step.
        max_partial_prefills: long prompts that are in progress at the same time; None is half of `max_num_seqs`.
        max_preemptions: how often a batch request makes way for interactive ones.

    Raises:
        ValueError: a number is out of range, or a step of one tile takes longer than the target.
    """

    def __init__(
        self,
        state: ServingState[Sequence],
        *,
        profile: StepProfile,
        latency_target: float | None = None,
        tile: int = 64,
        ageing: float = 0.5,
        batch_delay: float = 10.0,
        long_prefill_threshold: int | None = None,
        max_partial_prefills: int | None = None,
        max_preemptions: int = 4,
    ):
        super().__init__(state, max_preemptions=max_preemptions)
        queue: AgedQueue = AgedQueue(profile.math.b, ageing=ageing, batch_delay=batch_delay)
        self.waiting = state.waiting = Backfill(
            state, queue, step_tokens=self.max_num_batched_tokens, may_begin=self.may_begin
        )
        self.profile, self.tile = profile, tile
        self.latency_target = math.inf if latency_target is None else latency_target
        self.long_prefill_threshold = (
            self.max_num_batched_tokens if long_prefill_threshold is None else long_prefill_threshold
        )
        self.max_partial_prefills = (
            max(1, self.max_num_seqs // 2) if max_partial_prefills is None else max_partial_prefills
        )
        self._decoded_last = True  # with steps of one kind: what the last one was
        check_slack_options(self)

    def plan_step(self, plan: list[Scheduled]) -> None:
        """Makes room first, then plans: both kinds in one step, or the kind whose turn it is."""
        make_way(self)
        self.running.sort(
            key=self.may_preempt
        )  # who may be preempted for a block comes last, the youngest at the end
        first, second = self.plan_decodes, self.plan_prompts
        if not self.limits.mixed_steps and is_turn_of_prompts(self):
            first, second = second, first
        first(plan)
        if self.limits.mixed_steps or not plan:
            second(plan)
        self._decoded_last = any(entry.is_decode for entry in plan)

    # How much: the slack of the decodes.

    def slack(self) -> float:
        """Seconds until the first running request that is ready to decode is due; infinite if none is ready."""
        # TASK 3.5.5: each is due `latency_target` after its last token. The most urgent one decides.
        due = [one.token_time + self.latency_target for one in self.running if one.is_decoding]
        return min(due, default=math.inf) - self.state.now

    def prompt_budget(self, plan: list[Scheduled]) -> int:
        """Tokens of prompts that the step may have: what fits into the slack, and at least a tile: no prompt starves.

        Args:
            plan: the decodes of this step.
        """
        most = len(plan) + super().prompt_budget(plan)  # tokens of the whole step
        ready = sum(one.is_decoding for one in self.running)
        # TASK 3.5.5: the profile's budget for the slack, at most `most`; the decodes are part of it. If nobody is ready
        # to decode, nobody waits: all of `most`. With steps of one kind `plan` is empty here, and the decodes need
        # their own time within the slack, after the chunk.
        if not ready:
            return most
        slack = self.slack()
        if not self.limits.mixed_steps:
            slack -= self.profile.seconds(ready, ready)
        tokens = self.profile.tokens_within(slack, len(plan), self.tile, most)
        return max(tokens - len(plan), min(self.tile, most - len(plan)))

    # Whose: short first, with ageing.

    def plan_prompts(self, plan: list[Scheduled]) -> None:
        """Adds chunks: up to half of the budget for prompts that end in this step, the rest by the keys."""
        plan_short_first(self, plan)

    def is_long(self, sequence: Sequence) -> bool:
        """Whether much of a prompt is left."""
        return sequence.num_uncomputed > self.long_prefill_threshold

    def may_begin(self, sequence: Sequence) -> bool:
        """Whether another long prompt may be in progress; a short one always may."""
        return not self.is_long(sequence) or sum(map(self.is_long, self.running)) < self.max_partial_prefills
