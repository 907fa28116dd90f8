"""The blocks in use of several requests as one flat list, which is what paged attention reads."""

from collections.abc import Sequence

from tiny_llm_common.packed_model import FlatBlocks


def flat_blocks(
    tables: Sequence[Sequence[int]],
    context_lens: Sequence[int],
    page_size: int,
    *,
    pad_block: int,
    count: int | None = None,
    first_seen: Sequence[int] | None = None,
) -> FlatBlocks:
    """Lists the blocks that hold what each request reads, and no others, padded to `count` blocks.

    Args:
        tables: for each request its blocks in the order of its text; more than it reads is allowed.
        context_lens: tokens that each request reads from its blocks; one with 0 lists nothing.
        page_size: tokens in a block.
        pad_block: the block that padding names; its content is never seen.
        count: N; when None, as many as there are, and at least 1, because no shape may be empty.
        first_seen: for each request the position of the first token that it reads; 0 when None. A sliding window gives
            it, and blocks that have left the window are not listed.

    Raises:
        ValueError: a table is too short for its context, or more blocks are in use than `count`.
    """
    # TASK 3.2.1: for each request the blocks from its first to its last token, and for each block how much is read.
    # Only the last block of a request may be partly filled, and a full one has all its slots in use, not none.
    raise NotImplementedError("week 3 day 2 task 1: flat_blocks")
