"""Drafts in a step: planning and packing them, which ones are right, undoing the others, and how many pay."""

from collections import abc
from collections.abc import Callable

from tiny_llm_engine.packed_model import PackedBatch, Sampled
from tiny_llm_engine.scheduled import Scheduled
from tiny_llm_extensions.drafts.drafted import Drafted, drafts_of

from ..blocks.block_allocator import BlockAllocator
from ..blocks.block_table import BlockTable


def plan_drafts(
    plan: list[Scheduled], proposals: dict[int, list[int]], budget: int, allocator: BlockAllocator
) -> None:
    """Replaces decodes of a plan by the same decodes with drafts, as far as there is room for them.

    Args:
        plan: a step without drafts, whose blocks are reserved.
        proposals: drafts by the number of their entry, the most important entry first.
        budget: tokens of the whole step, at most.
        allocator: the blocks.
    """
    # TASK 4.3.2: what the whole plan leaves of the budget is for drafts, which are then fewer for the next entry.
    # Reserve blocks as for a request that is admitted: the watermark stays free. Without free blocks a request has
    # as many drafts as fit into those that it has. Nothing is preempted for a guess.
    left = budget - sum(entry.size for entry in plan)
    for number, drafts in proposals.items():
        sequence, table = plan[number].sequence, plan[number].sequence.block_table
        known, drafts = len(sequence.known_tokens), drafts[:left]
        missing = table.missing(known + len(drafts))
        if missing and not allocator.can_allocate(missing):
            drafts = drafts[: table.capacity - known]
        if drafts:
            table.reserve(known + len(drafts))
            plan[number] = Drafted(sequence, plan[number].start, plan[number].size, tuple(drafts))
            left -= len(drafts)


def pack_drafts(plan: abc.Sequence[Scheduled]) -> PackedBatch:
    """Puts the tokens of all entries into one row, as `pack` does, with the drafts of each after its known tokens.

    Args:
        plan: entries of different requests. Blocks are reserved for known tokens and drafts.
    """
    batch = PackedBatch()
    # TASK 4.3.3: as in Task 3.3.2. A draft is computed like a token that is known, at the position after it.
    # The last known token and every draft have a sampled row: k drafts are checked by k + 1 draws.
    for entry in plan:
        table, drafts = entry.sequence.block_table, drafts_of(entry)
        stop = entry.stop + len(drafts)
        batch.token_ids.extend(entry.sequence.known_tokens[entry.start : entry.stop])
        batch.token_ids.extend(drafts)
        batch.positions.extend(range(entry.start, stop))
        batch.slots.extend(table.slots(entry.start, stop))
        batch.query_start.append(len(batch.token_ids))
        batch.context_lens.append(entry.start)
        batch.block_tables.append(table.blocks)
        if entry.needs_token:
            rows = len(batch.token_ids)
            batch.sample_rows.extend(range(rows - 1 - len(drafts), rows))
            batch.sampling.extend([entry.sequence.sampling] * (1 + len(drafts)))
    # END TASK
    return batch


def verify(drafts: abc.Sequence[int], drawn: abc.Sequence[Sampled]) -> list[Sampled]:
    """The tokens that a request gets from a step with drafts: those that it would get without them, one by one.

    Rows of logits are drawn with the seed of the request and the position of the row. So the draw after right tokens
    is the draw of a step without drafts, and a draft is right if it is equal to the draw.

    Args:
        drafts: k tokens.
        drawn: k + 1 draws: after the last known token, then after each draft.

    Returns:
        At least one of `drawn`: accepted drafts, then the draw that replaces the first wrong draft, or the draw after
        the last draft if all are right.

    Raises:
        ValueError: there is not one draw more than there are drafts.
    """
    if len(drawn) != len(drafts) + 1:
        raise ValueError(
            f"{len(drawn)} draws for {len(drafts)} drafts: each draft has one, and one follows the last"
        )
    # TASK 4.3.4: count the drafts from the front that are equal to the draw at their position; stop at the first other.
    # What was drawn after a wrong draft was drawn after a text that does not exist.
    accepted = 0
    while accepted < len(drafts) and drawn[accepted].token == drafts[accepted]:
        accepted += 1
    return list(drawn[: accepted + 1])


def rewind(table: BlockTable, num_tokens: int) -> None:
    """Gives back the blocks that no token before `num_tokens` needs. Their keys and values are forgotten.

    What a rejected draft has written into a block that stays is overwritten by the token at its position.

    Args:
        table: the block table of a request that goes on.
        num_tokens: tokens whose keys and values are kept.

    Raises:
        ValueError: the table holds fewer tokens, or other requests can find a block that would be given back.
    """
    if not table.num_registered <= num_tokens <= table.capacity:
        raise ValueError(
            f"{num_tokens} tokens cannot be kept: {table.num_registered} can be found by other requests, and the blocks"
            f" have room for {table.capacity}"
        )
    # TASK 4.3.5: keep the blocks of the first `num_tokens`, also one that is full in part; give the others back.
    # The allocator frees a list of blocks; the table must not hold them any longer.
    kept = -(-num_tokens // table.allocator.block_size)
    rejected = table.blocks[kept:]
    del table.blocks[kept:]
    table.allocator.free(rejected)


def choose_k(rate: float, most: int, rows: int, useful: float, seconds: Callable[[int], float]) -> int:
    """How many drafts to add to a step: as long as the tokens per second of the step rise.

    The i-th draft is of use if it is right and all before it are, which has the probability rate ** i.

    Args:
        rate: probability that a draft is right, given that all before it are.
        most: drafts, at most.
        rows: how many rows the step has so far.
        useful: how many of them are expected to be of use.
        seconds: gives the time of a step with this many rows.

    Returns:
        From 0 to `most`.
    """
    # TASK 4.3.6: add one draft after the other; stop at the first that does not pay.
    # It pays if the useful rows divided by the seconds of the step are more with it than without it.
    k, probability = 0, rate
    while k < most and (useful + probability) * seconds(rows + k) > useful * seconds(rows + k + 1):
        k, useful, probability = k + 1, useful + probability, probability * rate
    return k
