"""From a plan to one row of tokens: chunks and decodes of many requests, end to end, for one forward."""

from collections import abc

from tiny_llm_common.packed_model import PackedBatch
from tiny_llm_common.scheduled import Scheduled


def pack(plan: abc.Sequence[Scheduled]) -> PackedBatch:
    """Puts the tokens of all entries into one row. The entries may come in any order.

    Args:
        plan: entries of different requests, whose blocks are reserved.
    """
    batch = PackedBatch()
    # TASK 3.3.2: for each entry its tokens, their positions and slots, where the next entry begins, and its past.
    # A row is sampled only when it holds the last token that is known. In the middle of a prompt the prompt follows.
    for entry in plan:
        table = entry.sequence.block_table
        batch.token_ids.extend(entry.sequence.known_tokens[entry.start : entry.stop])
        batch.positions.extend(range(entry.start, entry.stop))
        batch.slots.extend(table.slots(entry.start, entry.stop))
        batch.query_start.append(len(batch.token_ids))
        batch.context_lens.append(entry.start)
        batch.block_tables.append(table.blocks)
        if entry.needs_token:
            batch.sample_rows.append(len(batch.token_ids) - 1)
            batch.sampling.append(entry.sequence.sampling)
    # END TASK
    return batch
