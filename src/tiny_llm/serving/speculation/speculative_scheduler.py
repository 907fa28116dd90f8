"""Hybrid batches with drafts: a decode may check several tokens in one step (Leviathan et al., 2023)."""

from collections import abc
from typing import Any

from tiny_llm_common.drafted import Drafted, Proposer, SpeculationCounts, has_drafts
from tiny_llm_common.packed_model import PackedBatch, PackedModel, Sampled
from tiny_llm_common.scheduled import Scheduled
from tiny_llm_given.serving.draft_results import commit_drafts, split_draws
from tiny_llm_given.serving.proposals import Proposals, StepCosts

from ..batching.hybrid_scheduler import HybridScheduler
from ..blocks.block_allocator import BlockAllocator
from .drafts import choose_k, pack_drafts, rewind, verify


class SpeculativeScheduler(HybridScheduler):
    """A `HybridScheduler` whose decodes carry drafts. Every answer is the one without drafts.

    Drafts come last: into the budget that decodes and prompts have left, and into blocks that are free. They preempt no
    request, and no request finds them in the prefix cache before they are accepted.

    Args:
        model, allocator, options: see `StepLoop`.
        proposer, num_speculative_tokens, profile: see `Proposals`.

    Raises:
        ValueError: see `StepLoop` and `Proposals`.
    """

    def __init__(
        self,
        model: PackedModel,
        allocator: BlockAllocator,
        *,
        proposer: Proposer,
        num_speculative_tokens: int,
        profile: StepCosts | None = None,
        **options: Any,
    ):
        super().__init__(model, allocator, **options)
        self.proposals = Proposals(choose_k, proposer, num_speculative_tokens, profile)
        self.buckets = options.get("buckets")
        self.counts = SpeculationCounts()

    # First: what runs.

    def propose(self, plan: list[Scheduled]) -> None:
        """Adds drafts to the decodes of a plan. The proposer that guesses them may have a model of its own."""
        self.plan_drafts(plan, self.proposals.of(plan, self.row_room(plan)))

    def row_room(self, plan: abc.Sequence[Scheduled]) -> int:
        """How many more rows the step may sample; a padded step has a fixed number of them. Given."""
        if self.buckets is None:
            return self.max_num_batched_tokens
        return self.buckets.max_num_seqs - sum(entry.needs_token for entry in plan)

    def plan_drafts(self, plan: list[Scheduled], proposals: dict[int, list[int]]) -> None:
        """Replaces decodes of a plan by the same decodes with drafts, as far as there is room for them.

        Args:
            plan: a step without drafts, whose blocks are reserved.
            proposals: drafts by the number of their entry, the most important entry first.
        """
        # TASK 4.3.2: what the whole plan leaves of the budget is for drafts, which are then fewer for the next entry.
        # Reserve blocks as for a request that is admitted: the watermark stays free. Without free blocks a request has
        # as many drafts as fit into those that it has. Nothing is preempted for a guess.
        raise NotImplementedError("week 4 day 3 task 2: SpeculativeScheduler.plan_drafts")

    # Second: the model.

    def pack_call(self, call: abc.Sequence[Scheduled]) -> PackedBatch:
        """The tokens of a call in one row, with a sampled row after each draft."""
        return pack_drafts(call) if has_drafts(call) else super().pack_call(call)

    # Third: what came of it.

    def commit(self, plan: abc.Sequence[Scheduled], sampled: abc.Sequence[Sampled]) -> None:
        """Records what a call has computed: a step without drafts, then the drafts that were right.

        Args:
            plan: what was computed.
            sampled: one for each entry that needs a token and for each draft, in their order.

        Raises:
            ValueError: there are more of them, or fewer.
        """
        if not has_drafts(plan):
            super().commit(plan, sampled)
            return
        taken, first = split_draws(plan, sampled, verify)
        super().commit(plan, first)
        for entry, tokens in taken:
            if isinstance(entry, Drafted):
                commit_drafts(self, entry, tokens, rewind)
        self.remove_ended()
        self.events.deliver()
