"""Placeholders: tokens that steps in flight will draw. What can be planned with them, and their packed batch."""

from collections import abc

from tiny_llm_engine.packed_model import PackedBatch
from tiny_llm_engine.scheduled import Scheduled

from ..batching.hybrid_scheduler import HybridScheduler
from ..batching.sequence import Sequence


def num_placeholders(sequence: Sequence) -> int:
    """Tokens of the answer that steps in flight will draw: they have a position, and nobody knows their ids.

    Args:
        sequence: a request, of which the first `num_scheduled` tokens are computed or in flight.

    Returns:
        0 while a token that is known is not scheduled; else one for each draw in flight.
    """
    # TASK 4.4.1: the row of the last known token draws the first one, and the row of a placeholder the next one.
    # Nothing is counted in step with the loop: `num_scheduled` and the known tokens say it.
    return max(0, sequence.num_scheduled + 1 - len(sequence.known_tokens))


def must_wait(sequence: Sequence) -> bool:
    """Whether the next draw of a request needs all tokens before it, so that it sits out a step after each draw.

    Returns:
        True with a grammar (`sampling.structured_outputs`), or with a penalty on tokens that were used: their host side
        reads the ids. False for what depends on the position alone: seeds, `min_tokens`, `logit_bias`, filters.
    """
    # TASK 4.4.2: a grammar, or a repetition, presence or frequency penalty that is on. `changes_logits` is too much.
    params = sequence.sampling
    penalties = params.presence_penalty, params.frequency_penalty, params.repetition_penalty - 1
    return params.structured_outputs is not None or any(penalties)


def can_decode_ahead(sequence: Sequence) -> bool:
    """Whether a decode of a request can be planned while tokens of it are in flight.

    Returns:
        True if all that is left to schedule is its last token, known or a placeholder, and the answer, placeholders
        included, is shorter than `max_new_tokens`. A request that has ended, or that has a placeholder and must wait,
        is not ready.
    """
    # TASK 4.4.3: is `num_scheduled` at the last token at least, and past the prompt? Does the limit leave a token?
    # A limit is never found late: the placeholders count like tokens. An end token is: nobody knows it yet.
    placeholders = num_placeholders(sequence)
    if sequence.is_done or (placeholders and must_wait(sequence)):
        return False
    last = max(sequence.num_prompt_tokens, len(sequence.known_tokens) - 1)
    return sequence.num_scheduled >= last and len(sequence.tokens) + placeholders < sequence.max_new_tokens


def make_room_ahead(scheduler: HybridScheduler, sequence: Sequence) -> bool:
    """Reserves blocks for known tokens and placeholders of a running request; see `HybridScheduler.make_room`.

    Args:
        scheduler: whose requests run.
        sequence: one of them, which is ready to decode.
    """
    # TASK 4.4.4: as in Task 3.3.4. The device will write keys and values of a placeholder, so it needs its slot.
    tokens = len(sequence.known_tokens) + num_placeholders(sequence)
    missing = sequence.block_table.missing(tokens)
    while not scheduler.allocator.can_allocate(missing, keep_watermark=False):
        youngest = scheduler.running[-1]
        scheduler.preempt(youngest)
        if youngest is sequence:
            return False
    sequence.block_table.reserve(tokens)
    return True


def pack_ahead(plan: abc.Sequence[Scheduled], drawn: abc.Sequence[Sequence]) -> PackedBatch:
    """Puts the tokens of all entries into one row, as `pack` does, with a placeholder where a token is not known yet.

    Args:
        plan: entries of different requests, whose blocks are reserved for known tokens and placeholders. An entry has
            one placeholder at most: it starts after the known tokens then, and has size 1.
        drawn: the requests that the batch submitted just before draws tokens for, in the order of the draws.

    Returns:
        A batch whose `sources` (T,) are, for a placeholder, the index of its request in `drawn`; -1 where the token
        is known. The id of a placeholder in `token_ids` is 0. Without placeholders `sources` is empty.
    """
    batch = PackedBatch()
    # TASK 4.4.5: as in Task 3.3.2, and for each row where the device finds its token: -1 is `token_ids` itself.
    # The row of a placeholder is sampled, like that of the last known token.
    index = {sequence: number for number, sequence in enumerate(drawn)}
    for entry in plan:
        table, known = entry.sequence.block_table, entry.sequence.known_tokens[entry.start : entry.stop]
        batch.token_ids.extend(known or [0])
        batch.sources.extend([-1] * len(known) or [index[entry.sequence]])
        batch.positions.extend(range(entry.start, entry.stop))
        batch.slots.extend(table.slots(entry.start, entry.stop))
        batch.query_start.append(len(batch.token_ids))
        batch.context_lens.append(entry.start)
        batch.block_tables.append(table.blocks)
        if entry.needs_token:
            batch.sample_rows.append(len(batch.token_ids) - 1)
            batch.sampling.append(entry.sequence.sampling)
    if max(batch.sources, default=-1) < 0:
        batch.sources.clear()
    # END TASK
    return batch
