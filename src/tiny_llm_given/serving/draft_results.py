"""The results of a step with drafts: which draws count, and what happens to right and wrong drafts."""

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

from tiny_llm_common.drafted import Drafted, drafts_of
from tiny_llm_common.packed_model import Sampled
from tiny_llm_common.scheduled import Scheduled


def split_draws(
    plan: Sequence[Scheduled],
    sampled: Sequence[Sampled],
    verify: Callable[[Sequence[int], Sequence[Sampled]], list[Sampled]],
) -> tuple[list[tuple[Scheduled, list[Sampled]]], list[Sampled]]:
    """The tokens that each entry gets, and the first of each, which is what a step without drafts would draw.

    Args:
        plan: what was computed.
        sampled: one for each entry that needs a token and for each draft, in their order; others may follow.
        verify: which draws count, see Task 4.3.4.
    """
    draws = iter(sampled)
    taken = [
        (entry, verify(drafts_of(entry), list(islice(draws, 1 + len(drafts_of(entry))))))
        for entry in plan
        if entry.needs_token
    ]
    return taken, [*(tokens[0] for _, tokens in taken), *draws]


def commit_drafts(
    scheduler: Any, entry: Drafted, tokens: Sequence[Sampled], rewind: Callable[[Any, int], None]
) -> None:
    """Records the accepted drafts of an entry, and takes the rejected ones out of its blocks.

    Args:
        scheduler: a `SpeculativeScheduler`.
        entry: a request whose first token is taken.
        tokens: all tokens that the step has given it.
        rewind: gives blocks back, see Task 4.3.5.
    """
    sequence = entry.sequence
    scheduler.counts.add(len(entry.drafts), len(tokens) - 1)
    scheduler.proposals.observe(sequence, len(entry.drafts), len(tokens) - 1)
    for token in tokens[1:]:
        if not sequence.is_done:  # a token before this one may have ended it, and so may a listener
            sequence.num_computed += 1  # the draft that this token was drawn after
            sequence.take_sampled(token)
            scheduler.emit("token", sequence)
            scheduler.events.deliver()
    if not sequence.is_done:
        sequence.block_table.register(sequence.known_tokens, sequence.num_computed)
        rewind(sequence.block_table, sequence.num_computed)
