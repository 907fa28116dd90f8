"""Lists with fillers up to a given length, and the reads of chunks at the lengths of a bucket. Given."""

from collections.abc import Sequence
from typing import TypeVar

from tiny_llm_engine.packed_model import FlatBlocks, PastReads

T = TypeVar("T")
NOTHING = PastReads([], [], FlatBlocks([], [], [], [], []))


def pad_to(values: Sequence[T], count: int, filler: T) -> list[T]:
    """The values, and fillers up to `count` in all.

    Raises:
        ValueError: there are more values than `count`.
    """
    if len(values) > count:
        raise ValueError(
            f"{len(values)} entries do not fit into a bucket of {count}: take `Buckets.of` of this batch"
        )
    return [*values, *[filler] * (count - len(values))]


def pad_blocks(blocks: FlatBlocks, count: int, pad_block: int, group: int) -> FlatBlocks:
    """A flat list of `count` pages; what is added is the pad block, no slot of which is read.

    Args:
        group: a number that is no request's, for the pages of padding.
    """
    fillers = FlatBlocks(pad_block, group, 0, 0, 0)
    columns = zip(blocks, fillers, strict=True)
    return FlatBlocks(*(pad_to(column, count, filler) for column, filler in columns))


def pad_chunk_reads(
    reads: PastReads | None, tokens: int, pages: int | None, pad_block: int
) -> PastReads | None:
    """What chunks read, as all rows of a bucket and `pages` pages.

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
