"""Padding: the lists of a packed batch at the lengths of a bucket, so that no row and no key of the batch changes."""

from collections.abc import Sequence
from typing import TypeVar

from tiny_llm_common.bucket import Bucket
from tiny_llm_common.packed_batch import PackedBatch
from tiny_llm_common.packed_inputs import FlatBlocks, PackedInputs, PastReads

from ..blocks.flat_blocks import past_reads

T = TypeVar("T")
NOTHING = PastReads([], [], FlatBlocks([], [], [], [], []))


def inputs_of(batch: PackedBatch, page_size: int, pad_block: int, window: int | None = None) -> PackedInputs:
    """What a model computes of a batch, as lists. Given.

    Args:
        page_size, pad_block: of the pools.
        window: how many tokens are seen in layers with a sliding window; None if the model has no such layers.
    """

    def reads(single: bool, window: int | None = None) -> PastReads | None:
        """The past that requests of one row read, or those of several."""
        chosen = [i for i, (start, stop) in enumerate(batch.spans) if (stop - start == 1) == single]
        spans, contexts = [batch.spans[i] for i in chosen], [batch.context_lens[i] for i in chosen]
        tables = [batch.block_tables[i] for i in chosen]
        return past_reads(spans, contexts, tables, page_size, pad_block, window)

    own = batch.token_ids, batch.positions, batch.slots, batch.segments, batch.sample_rows or None
    return PackedInputs(*own, reads(False), reads(True), None if window is None else reads(True, window))


def pad_to(values: Sequence[T], count: int, filler: T) -> list[T]:
    """The values, and fillers up to `count` in all. Given.

    Raises:
        ValueError: there are more values than `count`.
    """
    if len(values) > count:
        raise ValueError(
            f"{len(values)} entries do not fit into a bucket of {count}: take `Buckets.of` of this batch"
        )
    return [*values, *[filler] * (count - len(values))]


def pad_blocks(blocks: FlatBlocks, count: int, pad_block: int, group: int) -> FlatBlocks:
    """A flat list of `count` pages; what is added is the pad block, no slot of which is read. Given.

    Args:
        group: a number that is no request's, for the pages of padding.
    """
    fillers = FlatBlocks(pad_block, group, 0, 0, 0)
    return FlatBlocks(
        *(pad_to(*column) for column in zip(blocks, [count] * len(blocks), fillers, strict=True))
    )


def pad_chunk_reads(
    reads: PastReads | None, tokens: int, pages: int | None, pad_block: int
) -> PastReads | None:
    """What chunks read, as all rows of a bucket and `pages` pages. Given.

    Every row takes part, each once and in order. A row that reads nothing has a group that is no request's.

    Args:
        reads: of the batch; None when no chunk has a past.
        tokens: rows of the bucket.
        pages: of the bucket; 0 is None again, and None leaves `reads` as it is.
        pad_block: the page of padding.
    """
    if pages is None:
        return reads
    if pages == 0:
        return None
    reads = reads or NOTHING
    groups = dict(zip(reads.rows, reads.groups, strict=True))
    blocks = pad_blocks(reads.blocks, pages, pad_block, tokens)
    return PastReads(list(range(tokens)), [groups.get(row, -1) for row in range(tokens)], blocks)


def pad_decode_reads(
    reads: PastReads | None, tokens: int, rows: int, pages: int | None, pad_block: int
) -> PastReads | None:
    """What requests of one row read, as `rows` rows and `pages` pages.

    Args:
        reads: of the batch; None when none of these requests has a past.
        tokens: rows of the bucket.
        rows: those of them that may read a past of their own.
        pages: of the bucket; 0 is None again, and None leaves `reads` as it is.
        pad_block: the page of padding.
    """
    if pages is None:
        return reads
    if pages == 0:
        return None
    reads = reads or NOTHING
    # TASK 3.4.7: row i is group i. After the rows that read come other rows of the step, so that none is there twice:
    # each row's statistics are written back to its place, and of two writes to one place only one stays.
    # The pages of padding belong to group `rows`, which is no request.
    readers = set(reads.rows)
    others = [row for row in range(tokens) if row not in readers]
    chosen = [*reads.rows, *others][:rows]
    return PastReads(chosen, list(range(rows)), pad_blocks(reads.blocks, pages, pad_block, rows))


def pad_inputs(
    inputs: PackedInputs, bucket: Bucket, page_size: int, pad_block: int, has_window: bool = False
) -> PackedInputs:
    """A copy with every list padded to the length in the bucket. Results of the real rows do not change.

    Args:
        inputs: lists.
        bucket: at least as large as the batch, see `Buckets.of`.
        page_size, pad_block: of the pools. Keys and values of padding go to the pad block, which is never read.
        has_window: whether the model has layers with a sliding window.
    """
    tokens, rows, pages = bucket.tokens, bucket.rows, bucket.decode_pages
    # TASK 3.4.8: rows of padding have a segment of their own: they see only themselves, and no other row sees them.
    # Their slot is in the pad block. A sampled row more is dropped after the step, so it may be any row.
    decodes = pad_decode_reads(inputs.decodes, tokens, rows, pages, pad_block)
    windowed = pad_decode_reads(inputs.window_decodes, tokens, rows, pages, pad_block)
    return PackedInputs(
        pad_to(inputs.token_ids, tokens, 0),
        pad_to(inputs.positions, tokens, 0),
        pad_to(inputs.slots, tokens, pad_block * page_size),
        pad_to(inputs.segments, tokens, max(inputs.segments, default=-1) + 1),
        pad_to(inputs.sample_rows or [], rows, 0),
        pad_chunk_reads(inputs.chunks, tokens, bucket.chunk_pages, pad_block),
        decodes,
        windowed if has_window else None,
    )
