"""A packed batch as a model takes it: lists of integers, or arrays, with the pages that its rows read."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple


class FlatBlocks(NamedTuple):
    """N blocks of several requests, one after the other; five lists of N integers, or arrays made of them.

    Args:
        block_list: the block's number, its page in the pool.
        block_groups: the request that reads it, as its place among the tables; the number of tables in padding.
        block_usage: one more than the last slot of the block that is read; 0 in padding.
        block_starts: the first slot of the block that is read; 0 but at the edge of a sliding window.
        first_positions: the position in its text of the token in the block's first slot.
    """

    block_list: Any  # a NamedTuple cannot be generic before Python 3.11
    block_groups: Any
    block_usage: Any
    block_starts: Any
    first_positions: Any


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


READS = 2 + len(FlatBlocks._fields)  # arrays of a `PastReads`


@dataclass(frozen=True)
class PackedInputs:
    """A packed batch as a model takes it: lists of integers, or arrays made of them.

    Args:
        token_ids, positions, slots: (T,), see `PackedBatch`.
        segments: (T,) the request of each row.
        sample_rows: (K,) rows that reach the head; None when no row is sampled.
        chunks: what the rows of chunks read; None when no chunk has a past.
        decodes: what requests of one row read; None when none has a past.
        window_decodes: the same in layers with a sliding window; None if the model has no such layers.
    """

    token_ids: Any
    positions: Any
    slots: Any
    segments: Any
    sample_rows: Any
    chunks: PastReads | None
    decodes: PastReads | None
    window_decodes: PastReads | None = None

    def map(self, convert: Callable[[list], Any]) -> "PackedInputs":
        """The same with every list converted, for example to arrays of a device."""

        def one(part):
            return (
                None if part is None else part.map(convert) if isinstance(part, PastReads) else convert(part)
            )

        return PackedInputs(**{name: one(part) for name, part in vars(self).items()})

    def flatten(self) -> list[Any]:
        """All arrays in a fixed order, with None for each that is missing: the inputs of a captured step."""
        flat = [self.token_ids, self.positions, self.slots, self.segments, self.sample_rows]
        for reads in (self.chunks, self.decodes, self.window_decodes):
            flat += [None] * READS if reads is None else [reads.rows, reads.groups, *reads.blocks]
        return flat

    @classmethod
    def of(cls, flat: Sequence[Any]) -> "PackedInputs":
        """The inputs that `flatten` has made this list of."""
        own = flat[:5]
        reads = [reads_of(flat[start : start + READS]) for start in range(5, len(flat), READS)]
        return cls(*own, *reads)


def reads_of(flat: Sequence[Any]) -> PastReads | None:
    """The arrays of a `PastReads`; None if they are missing."""
    rows, groups, *blocks = flat
    return None if rows is None else PastReads(rows, groups, FlatBlocks(*blocks))
