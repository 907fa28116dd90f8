"""Padding: the lists of a packed batch at the lengths of a bucket, so that no row and no key of the batch changes."""

from tiny_llm_engine.packed_model import Bucket, PackedInputs, PastReads
from tiny_llm_extensions.graphs.padding import NOTHING, pad_blocks, pad_chunk_reads, pad_to


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
    # The pages of padding belong to group `rows`, which no request has.
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
