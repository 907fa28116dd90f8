"""A packed batch as a model takes it: lists of integers, or arrays; as they are, or padded to a bucket."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..blocks.flat_blocks import FlatBlocks
from ..blocks.past_reads import PastReads
from .bucket import Bucket
from .padding import pad_chunk_reads, pad_decode_reads, pad_to

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

    def padded(
        self, bucket: Bucket, page_size: int, pad_block: int, has_window: bool = False
    ) -> "PackedInputs":
        """A copy with every list padded to the length in the bucket. Results of the real rows do not change.

        Args:
            bucket: at least as large as the batch, see `Buckets.of`.
            page_size, pad_block: of the pools. Keys and values of padding go to the pad block, which is never read.
            has_window: whether the model has layers with a sliding window.
        """
        tokens, rows, pages = bucket.tokens, bucket.rows, bucket.decode_pages
        # TASK 3.4.8: rows of padding have a segment of their own: they see only themselves, and no other row sees them.
        # Their slot is in the pad block. A sampled row more is dropped after the step, so it may be any row.
        raise NotImplementedError("week 3 day 4 task 8: PackedInputs.padded")

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
