"""Attention of packed batches on a CPU by kernels of our own: nothing is gathered, and no mask is made."""

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, groupby, pairwise
from typing import Any

import mlx.core as mx

from tiny_llm_engine.arrays.mlx.quantized_pages import QuantizedPages
from tiny_llm_engine.packed_model import PackedInputs, PastReads

from ..native.attention import DecodeKernel, KeptArray, attend_prompt
from ..native.kernel import NativeArray, empty, numbers_of, of_numpy, part_of, shared, threads_for
from ..native.page_reads import PageReads, decode_runs, past_runs
from .native import attend_slots, kept_arrays, native_array


@dataclass(frozen=True)
class ChunkText:
    """What L rows of one request read.

    Args:
        rows: its rows of the step.
        slots: (S,) of its past and of these rows, int64.
        window: how many tokens a row sees, itself included; None is all.
    """

    rows: slice
    slots: mx.array
    window: int | None

    @cached_property
    def _slots(self) -> NativeArray:
        """The slots as the kernel sees them; all layers read the same."""
        return native_array(self.slots)


def page_reads(
    inputs: PackedInputs, page_size: int, window: int | None = None, *, kernel: DecodeKernel
) -> PageReads:
    """Lists what each request of a step reads; takes the arguments of Day 3.3's `packed_mask`, and a kernel."""
    runs = past_runs(inputs.decodes if window is None else inputs.window_decodes, page_size)
    past, own, chunks = past_slots(inputs.chunks, page_size), inputs.slots.tolist(), []
    for start, stop in rows_of_requests(inputs):
        if start not in runs:
            slots = mx.array(past.get(start, []) + own[start:stop], mx.int64)
            chunks.append(ChunkText(slice(start, stop), slots, window))
    return PageReads(chunks, decode_runs(runs, inputs.slots, kernel))


def rows_of_requests(inputs: PackedInputs) -> list[tuple[int, int]]:
    """The first row of each request of a step, and the one after its last."""
    sizes = [len(list(rows)) for _, rows in groupby(inputs.segments.tolist())]
    return list(pairwise(accumulate(sizes, initial=0)))


def past_slots(past: PastReads | None, page_size: int) -> dict[int, list[int]]:
    """For each request with a past its slots, in the order of its text, by the first of its rows."""
    if past is None:
        return {}
    slots: dict[int, list[int]] = defaultdict(list)
    pages = past.blocks
    listed = pages.block_list, pages.block_groups, pages.block_starts, pages.block_usage
    for block, group, start, stop in zip(*(part.tolist() for part in listed), strict=True):
        slots[group].extend(range(block * page_size + start, block * page_size + stop))
    groups, rows = past.groups.tolist(), past.rows.tolist()
    first = dict(zip(reversed(groups), reversed(rows), strict=True))
    # Rows and groups of padding, see `padding.py`, read nothing.
    return {row: slots[group] for group, row in first.items() if slots.get(group)}


def attend_in_pages(
    query: mx.array,
    key: mx.array,
    value: mx.array,
    key_pages: mx.array | QuantizedPages,
    value_pages: mx.array | QuantizedPages,
    reads: PageReads,
    scale: float | None = None,
) -> mx.array:
    """Day 3.3's `packed_attention`; the rows' own keys and values are in the pages already.

    Args:
        query: (T, H, D).
        key, value: (T, Hkv, D) of these rows, not used.
        key_pages, value_pages: (num_blocks + 1, page_size, Hkv, D), in query's type or in eight bits.
        reads: see `page_reads`.
        scale: 1/√D when None.

    Returns:
        (T, H, D) in query's type.
    """
    out = _attend_slots(*kept_arrays(query, key_pages, value_pages), reads, scale)
    return mx.array(out.owner).view(query.dtype)


def _attend_slots(
    query: NativeArray, keys: KeptArray, values: KeptArray, reads: PageReads, scale: float | None = None
) -> NativeArray:
    """`attend_in_pages` of arrays as a kernel sees them; keys and values are those of all slots, (S, Hkv, D)."""
    factor: float = query.shape[2] ** -0.5 if scale is None else scale
    if reads.decodes is not None and not reads.chunks:
        return attend_slots(query, keys, values, reads.decodes, factor)  # of all rows, in their order
    heads = empty(query.shape, query.dtype)
    for chunk in reads.chunks:
        _attend_text(query, keys, values, chunk, heads, factor)
    if reads.decodes is not None:
        rows = shared(reads.decodes.rows)
        some = of_numpy(numbers_of(query)[rows], query.dtype)
        heads.owner[rows] = attend_slots(some, keys, values, reads.decodes, factor).owner
    return heads


def _attend_text(
    query: NativeArray, keys: KeptArray, values: KeptArray, text: ChunkText, out: NativeArray, scale: float
) -> None:
    """Attention of the rows of a chunk: writes those rows of `out`, (T, H, D)."""
    rows, arrays = text.rows, (keys, values, text._slots)
    size = 2 * (rows.stop - rows.start) * text.slots.size * keys.slot_bytes
    some, of_chunk = part_of(query, rows), part_of(out, rows)
    attend_prompt(some, *arrays, of_chunk, scale, text.window, threads_for(size))


def chunk_ways(kernel: DecodeKernel) -> dict[str, Any]:
    """The ways to compute the attention of a chunk that an engine may choose from; MLX's takes many times as long."""
    return {}
