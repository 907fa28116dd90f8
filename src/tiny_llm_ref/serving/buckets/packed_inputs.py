"""A packed batch as a model takes it: lists of integers, or arrays. Given."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tiny_llm_common.packed_batch import PackedBatch

from ..blocks.flat_blocks import FlatBlocks
from ..blocks.past_reads import PastReads, past_reads

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


def inputs_of(batch: PackedBatch, page_size: int, pad_block: int, window: int | None = None) -> PackedInputs:
    """What a model computes of a batch, as lists.

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
