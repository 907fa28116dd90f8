"""The batch that checks drafts: several sampled rows per request."""

from collections import abc

from tiny_llm_common.drafted import drafts_of
from tiny_llm_common.packed_model import PackedBatch
from tiny_llm_common.scheduled import Scheduled


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
