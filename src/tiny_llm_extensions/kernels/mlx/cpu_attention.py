"""Attention of packed batches on a CPU, which has no use for fixed shapes: every request reads its own tokens.

A CPU does not wait for a device when it reads a number, so the slots of each request are listed once a step. No score
of one request with another is computed: an exponential of MLX takes 25 ns on an x86 CPU, as much as thousands of
products. Requests of one row and of similar length are one call; the padding that this takes is at most as long as what
is read.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain

import mlx.core as mx

from tiny_llm_engine.arrays.mlx.quantized_pages import QuantizedPages
from tiny_llm_engine.packed_model import PackedInputs, PastReads

from ..native.layers import rows_of_requests


@dataclass(frozen=True)
class ChunkReads:
    """What L rows of one request read.

    Args:
        rows: its rows of the step.
        slots: (S,) of its past and of these rows; None when it has no past, and the rows are all its keys.
        mask: (L, S) float32, added to the scores; None for a single row, which sees all it reads.
    """

    rows: slice
    slots: mx.array | None
    mask: mx.array | None


@dataclass(frozen=True)
class DecodeReads:
    """What R requests of one row read.

    Args:
        rows: (R,) rows of the step.
        slots: (R, S) of their texts; a shorter text repeats its last slot.
        mask: (R, S) float32, added to the scores: -inf for the repeated slots.
    """

    rows: mx.array
    slots: mx.array
    mask: mx.array


@dataclass(frozen=True)
class StepReads:
    """What all rows of a step read; made once, and shared by all layers.

    Args:
        chunks, decodes: each row of the step is in one of them.
        order: (T,) the place of each row among those of all chunks and then of all decodes.
    """

    chunks: list[ChunkReads]
    decodes: list[DecodeReads]
    order: mx.array


def step_reads(inputs: PackedInputs, page_size: int, window: int | None = None) -> StepReads:
    """Lists what each request of a step reads; takes the arguments of Day 3.3's `packed_mask`."""
    past = past_slots(inputs.chunks, page_size)
    past |= past_slots(inputs.decodes if window is None else inputs.window_decodes, page_size)
    own, chunks, texts = inputs.slots.tolist(), [], {}
    for start, stop in rows_of_requests(inputs.segments):
        slots = past.get(start)
        if stop - start == 1 and slots is not None:
            texts[start] = slots + own[start:stop]
        else:
            read = None if slots is None else mx.array(slots + own[start:stop])
            mask = _own_mask(inputs.positions[start:stop], len(slots or ()), window)
            chunks.append(ChunkReads(slice(start, stop), read, mask))
    groups = _similar_lengths(texts)
    return StepReads(chunks, [_one_call(rows, texts) for rows in groups], _order(chunks, groups))


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


def _own_mask(positions: mx.array, past: int, window: int | None) -> mx.array | None:
    """The mask of L new rows over their `past` tokens and each other; None for a single row."""
    if positions.size == 1:
        return None
    keys = mx.concatenate([mx.arange(past, dtype=positions.dtype), positions])
    seen = keys <= positions[:, None]
    if window is not None:
        seen = seen & (keys > positions[:, None] - window)
    return mx.where(seen, 0.0, -mx.inf)


def _similar_lengths(texts: dict[int, list[int]]) -> list[list[int]]:
    """Groups of the rows of decodes whose lengths are between the same two powers of two."""
    groups: dict[int, list[int]] = defaultdict(list)
    for row, slots in texts.items():
        groups[(len(slots) - 1).bit_length()].append(row)
    return list(groups.values())


def _one_call(rows: list[int], texts: dict[int, list[int]]) -> DecodeReads:
    sizes = [len(texts[row]) for row in rows]
    # A text's own slot as padding: another one may hold anything, and 0 · NaN is NaN.
    slots = [texts[row] + texts[row][-1:] * (max(sizes) - len(texts[row])) for row in rows]
    hidden = mx.arange(max(sizes)) >= mx.array(sizes)[:, None]
    return DecodeReads(mx.array(rows), mx.array(slots), mx.where(hidden, -mx.inf, 0.0))


def _order(chunks: Sequence[ChunkReads], groups: Sequence[list[int]]) -> mx.array:
    """See `StepReads`."""
    computed = list(chain(*(range(chunk.rows.start, chunk.rows.stop) for chunk in chunks), *groups))
    return mx.array(sorted(range(len(computed)), key=computed.__getitem__))


def attend_decodes(
    fused_attention: Callable[..., mx.array],
    query: mx.array,
    key_pages: mx.array,
    value_pages: mx.array,
    reads: DecodeReads,
    scale: float,
) -> mx.array:
    """Attention of one row of each of R requests, by MLX's kernel on gathered keys and values.

    Args:
        fused_attention: Day 2.4's.
        query: (R, H, D).
        key_pages, value_pages: (num_blocks + 1, page_size, Hkv, D), with H a multiple of Hkv.
        reads: what they read.
        scale: a number.

    Returns:
        (R, H, D) in query's type.
    """
    keys, values = (_gather(pages, reads.slots) for pages in (key_pages, value_pages))
    # Heads that share a K/V head are the rows of one product, which then reads its keys once.
    heads = query.reshape(len(query), keys.shape[1], -1, query.shape[-1])
    mask = reads.mask[:, None, None]
    return fused_attention(heads, keys, values, scale, mask, may_hide_all=False).reshape(query.shape)


def _gather(pages: mx.array | QuantizedPages, slots: mx.array) -> mx.array:
    """(…, Hkv, S, D): keys or values of the slots (…, S), in the order in which products read them without a copy."""
    Hkv, D = pages.shape[2:]
    rows = slots[..., None, :] * Hkv + mx.arange(Hkv)[:, None]
    if isinstance(pages, QuantizedPages):
        return pages.rows(rows)
    return mx.take(pages.reshape(-1, D), rows, axis=0)


def attend_packed(
    query: mx.array,
    key: mx.array,
    value: mx.array,
    key_pages: mx.array,
    value_pages: mx.array,
    reads: StepReads,
    scale: float | None = None,
    *,
    fused_attention: Callable[..., mx.array],
) -> mx.array:
    """Day 3.3's `packed_attention`; the rows' own keys and values are in the pages already.

    Args:
        query: (T, H, D).
        key, value: (T, Hkv, D) of these rows.
        key_pages, value_pages: (num_blocks + 1, page_size, Hkv, D).
        reads: see `step_reads`.
        scale: 1/√D when None.
        fused_attention: Day 2.4's.

    Returns:
        (T, H, D) in query's type.
    """
    factor: float = query.shape[2] ** -0.5 if scale is None else scale
    pages = key_pages, value_pages
    heads = [
        _attend_chunk(fused_attention, query, key, value, *pages, chunk, factor) for chunk in reads.chunks
    ]
    heads += [
        attend_decodes(fused_attention, query[group.rows], *pages, group, factor) for group in reads.decodes
    ]
    return mx.concatenate(heads)[reads.order]


def _attend_chunk(
    fused_attention: Callable[..., mx.array],
    query: mx.array,
    key: mx.array,
    value: mx.array,
    key_pages: mx.array,
    value_pages: mx.array,
    chunk: ChunkReads,
    scale: float,
) -> mx.array:
    """(L, H, D): attention of one request of several rows."""
    if chunk.slots is None:
        keys, values = (part[chunk.rows].swapaxes(0, 1) for part in (key, value))
    else:
        keys, values = (_gather(pages, chunk.slots) for pages in (key_pages, value_pages))
    heads = query[chunk.rows].swapaxes(0, 1)
    found = fused_attention(heads[None], keys[None], values[None], scale, chunk.mask, may_hide_all=False)
    return found[0].swapaxes(0, 1)
