"""Which rows of a packed batch read pages that earlier steps have filled, and which pages. Given."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .flat_blocks import FlatBlocks, flat_blocks


@dataclass(frozen=True)
class PastReads:
    """P rows of a step and the N pages that they read; lists of integers, or arrays made of them.

    Args:
        rows: (P,) rows of the batch.
        groups: (P,) the request of each row, as `blocks.block_groups` calls it.
        blocks: five of (N,), see `flat_blocks`.
    """

    rows: Any
    groups: Any
    blocks: FlatBlocks

    def map(self, convert: Callable[[list], Any]) -> "PastReads":
        """The same with every list converted."""
        return PastReads(convert(self.rows), convert(self.groups), FlatBlocks(*map(convert, self.blocks)))


def past_reads(
    spans: Sequence[tuple[int, int]],
    context_lens: Sequence[int],
    block_tables: Sequence[Sequence[int]],
    page_size: int,
    pad_block: int,
    window: int | None = None,
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
