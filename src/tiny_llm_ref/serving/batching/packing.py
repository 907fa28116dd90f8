"""From a plan to one row of tokens: chunks and decodes of many requests, end to end, for one forward."""

from collections import abc

from tiny_llm_common import packed_model
from tiny_llm_common.packed_model import PackedBatch, PackedInputs
from tiny_llm_common.scheduled import Scheduled

from ..blocks.flat_blocks import flat_blocks


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


def inputs_of(batch: PackedBatch, page_size: int, pad_block: int, window: int | None = None) -> PackedInputs:
    """What a model computes of a batch, as lists, with the pages that `flat_blocks` lists. Given.

    Args:
        page_size, pad_block: of the pools.
        window: how many tokens are seen in layers with a sliding window; None if the model has no such layers.
    """
    return packed_model.inputs_of(batch, page_size, pad_block, window, flat_blocks)
