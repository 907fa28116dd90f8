"""A second, smaller model as a proposer: what it would write next is the draft."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tiny_llm_engine.packed_runner import PackedRunner
from tiny_llm_engine.scheduled import Scheduled
from tiny_llm_engine.solutions.solution_types import AnswerSequence, ServingPackage

from .drafted import SupposedAnswer

RECENT = 0.1  # weight of the last step in the time of a draft


@dataclass(eq=False)
class DraftText:
    """The text of one request in the draft model, which plans it: what is confirmed, then drafts.

    Args:
        sequence: the request.
        block_table: of the draft model's pool.
    """

    sequence: AnswerSequence
    block_table: Any

    def __post_init__(self):
        self.known_tokens: list[int] = []
        self.num_confirmed = self.num_computed = 0
        self.num_prompt_tokens = self.sequence.num_prompt_tokens
        # The noise of the request's own draws: where both models agree on a distribution, they draw the same token.
        self.sampling = replace(self.sequence.sampling, logprobs=None)

    @property
    def supposed(self) -> SupposedAnswer:
        """The request as its next draft sees it."""
        return SupposedAnswer(self.sequence, self.known_tokens[self.num_confirmed :])

    @property
    def num_uncomputed(self) -> int:
        """Tokens whose keys and values are missing."""
        return len(self.known_tokens) - self.num_computed

    def confirm(self) -> None:
        """Replaces the drafts by what the request has got since. The last token is computed in any case."""
        known, mine, same = self.sequence.known_tokens, self.known_tokens, self.num_confirmed
        while same < min(len(known), len(mine)) and known[same] == mine[same]:
            same += 1
        mine[same:] = known[same:]
        self.num_confirmed = len(known)
        self.num_computed = min(self.num_computed, same, len(known) - 1)


class DraftModel:
    """A proposer that runs a model of its own, in batches and with its own keys and values.

    Requests keep their keys and values from step to step. A request for which no block is free has no drafts.

    Args:
        names: the module `serving` of the solution.
        runner: runs the draft model.
        max_num_batched_tokens: tokens of a step.
        clock: seconds.
    """

    def __init__(
        self,
        names: ServingPackage,
        runner: PackedRunner,
        max_num_batched_tokens: int,
        clock: Callable[[], float] = time.perf_counter,
    ):
        self.names, self.runner, self.clock = names, runner, clock
        self.max_num_batched_tokens = max_num_batched_tokens
        self.allocator = names.BlockAllocator(
            runner.num_blocks, runner.block_size, enable_prefix_caching=False
        )
        self.draft_seconds, self._is_timed = (
            1e-9,
            False,
        )  # above 0: drafts cost something; the first tell how much
        self._texts: dict[AnswerSequence, DraftText] = {}

    def propose(self, wanted: Sequence[tuple[AnswerSequence, int]]) -> list[list[int]]:
        """See `Proposer` of the solution."""
        self._forget_ended()
        texts = [self._text(sequence, k) for sequence, k in wanted]
        most = max(k for _, k in wanted)
        for number in range(most):
            drafting = [
                text for text, (_, k) in zip(texts, wanted, strict=True) if text is not None and number < k
            ]
            if drafting:
                self._draft(drafting)
        return [[] if text is None else text.known_tokens[text.num_confirmed :] for text in texts]

    def _forget_ended(self) -> None:
        for sequence in [sequence for sequence in self._texts if sequence.is_done]:
            self._texts.pop(sequence).block_table.release()

    def _text(self, sequence: AnswerSequence, k: int) -> DraftText | None:
        """The text of a request with room for k drafts; None if it is too long, or no block is free."""
        if sequence not in self._texts:
            self._texts[sequence] = DraftText(sequence, self.names.BlockTable(self.allocator))
        text = self._texts[sequence]
        text.confirm()
        room = len(text.known_tokens) + k - 1  # nothing is computed after the last draft
        table = text.block_table
        if room > self.runner.max_model_len or table.missing(room) > self.allocator.num_free:
            return None
        table.reserve(room)
        return text

    def _draft(self, texts: list[DraftText]) -> None:
        """Appends one draft to each text; prompts are computed first, within the budget of a step."""
        waiting = texts
        while waiting:
            drawn = self._step(waiting)
            waiting = [text for text in waiting if text not in drawn]

    def _step(self, waiting: list[DraftText]) -> list[DraftText]:
        """Computes what the budget allows of these texts; returns those that have got a draft."""
        plan = self._plan(waiting)
        batch, drawn = self.names.pack(plan), [entry.sequence for entry in plan if entry.needs_token]
        if any(text.sampling.changes_logits for text in drawn):
            batch.requests.extend(text.supposed for text in drawn)
        start = self.clock()
        sampled = self.runner.run(batch)
        if len(batch.token_ids) <= 2 * len(plan):  # else prompts are in it
            self._time((self.clock() - start) / len(plan))
        for entry in plan:
            entry.sequence.num_computed = entry.stop
        for text, draft in zip(drawn, sampled, strict=True):
            text.known_tokens.append(draft.token)
        return drawn

    def _plan(self, waiting: list[DraftText]) -> list[Scheduled[DraftText]]:
        plan, left = [], self.max_num_batched_tokens
        for text in waiting:
            if size := min(left, text.num_uncomputed):
                plan.append(Scheduled(text, text.num_computed, size))
                left -= size
        return plan

    def _time(self, seconds: float) -> None:
        weight = RECENT if self._is_timed else 1.0
        self.draft_seconds, self._is_timed = (1 - weight) * self.draft_seconds + weight * seconds, True
