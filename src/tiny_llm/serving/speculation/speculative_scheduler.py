"""Hybrid batches with drafts: a decode may check several tokens in one step (Leviathan et al., 2023)."""

from collections import abc
from dataclasses import dataclass
from itertools import islice
from typing import Any

from tiny_llm_common.drafted import Drafted, Proposer, drafts_of, has_drafts, sampled_requests
from tiny_llm_common.packed_model import PackedBatch, PackedModel, Sampled
from tiny_llm_common.scheduled import Scheduled
from tiny_llm_given.serving.proposals import Proposals, StepCosts

from ..batching.hybrid_scheduler import HybridScheduler
from ..blocks.block_allocator import BlockAllocator
from .draft_length import choose_k
from .drafted import pack_drafts
from .rewind import rewind
from .verify import verify


@dataclass
class SpeculationCounts:
    """What drafts have come to in the life of an engine.

    Args:
        drafts: entries of plans that had drafts.
        draft_tokens: drafts of all of them.
        accepted_tokens: drafts that were right.
    """

    drafts: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0

    def add(self, draft_tokens: int, accepted_tokens: int) -> None:
        """Counts one entry."""
        self.drafts += 1
        self.draft_tokens += draft_tokens
        self.accepted_tokens += accepted_tokens


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

    def packed(self, call: list[Scheduled]) -> PackedBatch:
        """A call of the model as a batch, with a sampled row after each draft."""
        if not has_drafts(call):
            return super().packed(call)
        batch = pack_drafts(call)
        if self._changing:  # else a step does not look at what it draws
            self._changing = [sequence for sequence in self._changing if not sequence.is_done]
            batch.requests.extend(sampled_requests(call))
        return self.with_prompt_rows(batch, call)

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
        draws = iter(sampled)
        taken = [
            (entry, verify(drafts_of(entry), list(islice(draws, 1 + len(drafts_of(entry))))))
            for entry in plan
            if entry.needs_token
        ]
        super().commit(plan, [*(tokens[0] for _, tokens in taken), *draws])
        for entry, tokens in taken:
            if isinstance(entry, Drafted):
                self.commit_drafts(entry, tokens)
        self.remove_ended()
        self.events.deliver()

    def commit_drafts(self, entry: Drafted, tokens: abc.Sequence[Sampled]) -> None:
        """Records the accepted drafts of an entry, and takes the rejected ones out of its blocks. Given.

        Args:
            entry: a request whose first token is taken.
            tokens: all tokens that the step has given it.
        """
        sequence = entry.sequence
        self.counts.add(len(entry.drafts), len(tokens) - 1)
        self.proposals.observe(sequence, len(entry.drafts), len(tokens) - 1)
        for token in tokens[1:]:
            if not sequence.is_done:  # a token before this one may have ended it, and so may a listener
                sequence.num_computed += 1  # the draft that this token was drawn after
                sequence.take_sampled(token)
                self.emit("token", sequence)
                self.events.deliver()
        if not sequence.is_done:
            sequence.block_table.register(sequence.known_tokens, sequence.num_computed)
            rewind(sequence.block_table, sequence.num_computed)
