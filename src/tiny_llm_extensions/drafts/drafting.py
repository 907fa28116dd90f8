"""Decodes that carry drafts, put on a loop: a step may check several tokens of a request (Leviathan et al., 2023)."""

from collections.abc import Callable, Sequence
from itertools import islice

from tiny_llm_engine.packed_model import PackedBatch, Sampled
from tiny_llm_engine.scheduled import Scheduled
from tiny_llm_engine.solutions.solution_types import ServingPackage
from tiny_llm_engine.step_loop import StepLoop

from .drafted import Drafted, drafts_of, has_drafts, sampled_requests
from .proposals import Proposals


class Drafting:
    """Puts drafts on the decodes of a loop. Every answer is the one without drafts.

    Drafts come last: into the budget that decodes and prompts have left, and into blocks that are free. They preempt no
    request, and no request finds them in the prefix cache before they are accepted. A `PlanHook` and a `CommitHook`.

    Args:
        loop: whose plans get drafts.
        names: the module `serving` of the solution, with the tasks of Day 4.3.
        proposals: which requests have drafts, and how many.
        most_rows: rows that a step may sample; a padded step has a fixed number of them.
    """

    def __init__(self, loop: StepLoop, names: ServingPackage, proposals: Proposals, most_rows: int):
        self.loop, self.proposals, self.most_rows = loop, proposals, most_rows
        self._plan_drafts: Callable[..., None] = names.plan_drafts
        self._pack_drafts = names.pack_drafts
        self._verify, self._rewind = names.verify, names.rewind
        self._pack = loop.pack  # a call without drafts
        self._taken: list[tuple[Scheduled, list[Sampled]]] = []  # what each entry of a call with drafts gets

    @classmethod
    def put_on(
        cls, loop: StepLoop, names: ServingPackage, proposals: Proposals, most_rows: int
    ) -> "Drafting":
        """Puts drafts on a loop."""
        made = cls(loop, names, proposals, most_rows)
        loop.pack = made.pack
        loop.hooks.plan.append(made)
        loop.hooks.batch.append(made.put_answers_into)
        loop.hooks.commit.append(made)
        return made

    def limit(self, left: int, decodes: int) -> int:
        """See `PlanHook`. Drafts take nothing from prompts."""
        return left

    def change(self, plan: list[Scheduled], calls: Sequence[Sequence[Scheduled]]) -> None:
        """Adds drafts to the decodes of a plan. The proposer that guesses them may have a model of its own."""
        sampled = sum(entry.needs_token for entry in plan)
        proposed = self.proposals.of(plan, self.most_rows - sampled)
        budget, allocator = self.loop.scheduler.max_num_batched_tokens, self.loop.allocator
        self._plan_drafts(plan, proposed, budget, allocator)

    def pack(self, call: Sequence[Scheduled]) -> PackedBatch:
        """The tokens of a call in one row, with a sampled row after each draft."""
        return self._pack_drafts(call) if has_drafts(call) else self._pack(call)

    def put_answers_into(self, batch: PackedBatch, call: Sequence[Scheduled]) -> None:
        """Where drawing looks at the answers so far: the drafts before a row are part of its answer."""
        if batch.requests and has_drafts(call):
            batch.requests[:] = sampled_requests(call)

    def first_draws(self, call: Sequence[Scheduled], sampled: Sequence[Sampled]) -> Sequence[Sampled]:
        """The first token of each entry, which is what a step without drafts would draw. The others come later."""
        self._taken = []
        if not has_drafts(call):
            return sampled
        draws = iter(sampled)
        for entry in call:
            if entry.needs_token:
                drafts = drafts_of(entry)
                self._taken.append((entry, self._verify(drafts, list(islice(draws, 1 + len(drafts))))))
        return [*(tokens[0] for _, tokens in self._taken), *draws]

    def committed(self, call: Sequence[Scheduled]) -> None:
        """Records the drafts that were right, and takes the others out of their blocks."""
        for entry, tokens in self._taken:
            if isinstance(entry, Drafted):
                self._commit(entry, tokens)

    def _commit(self, entry: Drafted, tokens: Sequence[Sampled]) -> None:
        sequence, accepted = entry.sequence, len(tokens) - 1
        self.proposals.counts.add(len(entry.drafts), accepted)
        self.proposals.observe(sequence, len(entry.drafts), accepted)
        for token in tokens[1:]:
            if not sequence.is_done:  # a token before this one may have ended it, and so may a listener
                sequence.num_computed += 1  # the draft that this token was drawn after
                sequence.take_sampled(token)
                self.loop.state.emit("token", sequence)
                self.loop.events.deliver()
        if not sequence.is_done:
            sequence.block_table.register(sequence.known_tokens, sequence.num_computed)
            self._rewind(sequence.block_table, sequence.num_computed)
