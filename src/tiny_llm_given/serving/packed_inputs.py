"""From a packed batch to what a model takes: which rows read pages that earlier steps have filled, and which pages."""

from collections.abc import Callable, Sequence

from tiny_llm_common.packed_inputs import FlatBlocks, PackedInputs, PastReads
from tiny_llm_common.packed_model import PackedBatch


def past_reads(
    spans: Sequence[tuple[int, int]],
    context_lens: Sequence[int],
    block_tables: Sequence[Sequence[int]],
    page_size: int,
    pad_block: int,
    window: int | None,
    flat_blocks: Callable[..., FlatBlocks],
) -> PastReads | None:
    """What some requests of a step read; None when none of them has a past.

    Args:
        spans: for each request its first row, and the row after its last.
        context_lens: for each request the tokens that earlier steps have computed.
        block_tables: for each request its blocks in the order of its text.
        page_size: tokens per page.
        pad_block: the page of padding.
        window: how many tokens a token sees, itself included; None is all. Pages that have left the window of a
            request's first row are not listed.
        flat_blocks: lists blocks, see Task 3.2.1.
    """
    readers = [index for index, context in enumerate(context_lens) if context]
    if not readers:
        return None
    contexts = [context_lens[index] for index in readers]
    first_seen = None if window is None else [max(context + 1 - window, 0) for context in contexts]
    rows = [(row, group) for group, index in enumerate(readers) for row in range(*spans[index])]
    tables = [block_tables[index] for index in readers]
    blocks = flat_blocks(tables, contexts, page_size, pad_block=pad_block, first_seen=first_seen)
    return PastReads([row for row, _ in rows], [group for _, group in rows], blocks)


def inputs_of(
    batch: PackedBatch,
    page_size: int,
    pad_block: int,
    window: int | None,
    flat_blocks: Callable[..., FlatBlocks],
) -> PackedInputs:
    """What a model computes of a batch, as lists.

    Args:
        page_size, pad_block: of the pools.
        window: how many tokens are seen in layers with a sliding window; None if the model has no such layers.
        flat_blocks: lists blocks, see Task 3.2.1.
    """

    def reads(single: bool, window: int | None = None) -> PastReads | None:
        """The past that requests of one row read, or those of several."""
        chosen = [i for i, (start, stop) in enumerate(batch.spans) if (stop - start == 1) == single]
        spans, contexts = [batch.spans[i] for i in chosen], [batch.context_lens[i] for i in chosen]
        tables = [batch.block_tables[i] for i in chosen]
        return past_reads(spans, contexts, tables, page_size, pad_block, window, flat_blocks)

    own = batch.token_ids, batch.positions, batch.slots, batch.segments, batch.sample_rows or None
    return PackedInputs(*own, reads(False), reads(True), None if window is None else reads(True, window))
