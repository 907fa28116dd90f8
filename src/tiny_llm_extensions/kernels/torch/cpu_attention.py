"""Attention of packed batches on a CPU, which has no use for fixed shapes: every request reads its own tokens.

A CPU does not wait for a device when it reads a number, so the slots of each request are listed once a step. Requests
of one row and of similar length are one call; the padding that this takes is at most as long as what is read.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from tiny_llm_engine.arrays.torch import fused
from tiny_llm_engine.packed_model import PackedInputs, PastReads


@dataclass(frozen=True)
class ChunkReads:
    """What L rows of one request read.

    Args:
        rows: its rows of the step.
        slots: (S,) of its past and of these rows; None when it has no past, and the rows are all its keys.
        mask: (L, S) float32, added to the scores; None when the rows need none beside `is_causal`.
    """

    rows: slice
    slots: torch.Tensor | None
    mask: torch.Tensor | None


@dataclass(frozen=True)
class DecodeReads:
    """What R requests of one row read.

    Args:
        rows: (R,) rows of the step.
        slots: (R, S) of their texts; a shorter text repeats its last slot.
        mask: (R, S) float32, added to the scores: -inf for the repeated slots.
    """

    rows: torch.Tensor
    slots: torch.Tensor
    mask: torch.Tensor


@dataclass(frozen=True)
class StepReads:
    """What all rows of a step read; made once, and shared by all layers."""

    chunks: list[ChunkReads]
    decodes: list[DecodeReads]


def step_reads(inputs: PackedInputs, page_size: int, window: int | None = None) -> StepReads:
    """Lists what each request of a step reads; takes the arguments of Day 3.3's `packed_mask`."""
    decodes = inputs.decodes if window is None else inputs.window_decodes
    past = past_slots(inputs.chunks, page_size) | past_slots(decodes, page_size)
    chunks, texts = [], {}
    for rows in rows_of_requests(inputs):
        slots = past.get(rows.start)
        if rows.stop - rows.start == 1 and slots is not None:
            texts[rows.start] = torch.cat([slots, inputs.slots[rows]])
        else:
            chunks.append(chunk_reads(inputs, rows, slots, window))
    return StepReads(chunks, _decode_reads(texts))


def chunk_reads(
    inputs: PackedInputs, rows: slice, past: torch.Tensor | None, window: int | None
) -> ChunkReads:
    """What some rows of one request read, after the slots of its past."""
    mask = own_mask(inputs.positions[rows], 0 if past is None else len(past), window)
    return ChunkReads(rows, None if past is None else torch.cat([past, inputs.slots[rows]]), mask)


def rows_of_requests(inputs: PackedInputs) -> list[slice]:
    """The rows of each request of a step."""
    ends = torch.unique_consecutive(inputs.segments, return_counts=True)[1].cumsum(0).tolist()
    return [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]


def past_slots(past: PastReads | None, page_size: int) -> dict[int, torch.Tensor]:
    """For each request with a past its slots, in the order of its text, by the first of its rows."""
    if past is None:
        return {}
    slot = torch.arange(page_size)
    seen = (slot < past.blocks.block_usage[:, None]) & (slot >= past.blocks.block_starts[:, None])
    groups, rows = past.groups.tolist(), past.rows.tolist()
    first = dict(zip(reversed(groups), reversed(rows), strict=True))
    counts = torch.zeros(max(groups) + 2, dtype=torch.long)
    counts.index_add_(0, past.blocks.block_groups.clamp(max=len(counts) - 1), seen.sum(dim=1))
    slots = (past.blocks.block_list[:, None] * page_size + slot)[seen].split(counts.tolist())
    # Rows and groups of padding, see `padding.py`, read nothing.
    return {row: slots[group] for group, row in first.items() if group >= 0 and len(slots[group])}


def own_mask(positions: torch.Tensor, past: int, window: int | None) -> torch.Tensor | None:
    """The mask of L new rows over their `past` tokens and each other; None if none is needed or `is_causal` says it."""
    if len(positions) == 1 or (past == 0 and (window is None or len(positions) <= window)):
        return None
    keys = torch.cat([torch.arange(past), positions])
    seen = keys <= positions[:, None]
    if window is not None:
        seen &= keys > positions[:, None] - window
    return torch.where(seen, 0.0, -torch.inf)


def _decode_reads(texts: dict[int, torch.Tensor]) -> list[DecodeReads]:
    """One call per group of decodes whose lengths are between the same two powers of two.

    Args:
        texts: the slots of each, by its row.
    """
    groups: dict[int, list[int]] = {}
    for row, slots in texts.items():
        groups.setdefault((len(slots) - 1).bit_length(), []).append(row)
    return [_one_call(rows, [texts[row] for row in rows]) for rows in groups.values()]


def _one_call(rows: list[int], texts: list[torch.Tensor]) -> DecodeReads:
    sizes = torch.tensor([len(text) for text in texts])
    starts = sizes.cumsum(0) - sizes
    keys = torch.arange(max(len(text) for text in texts))
    # A text's own slot as padding: another one may hold anything, and 0 · NaN is NaN.
    slots = torch.cat(texts)[starts[:, None] + torch.minimum(keys, sizes[:, None] - 1)]
    return DecodeReads(torch.tensor(rows), slots, torch.where(keys < sizes[:, None], 0.0, -torch.inf))


def attend_decodes(
    query: torch.Tensor,
    key_pages: torch.Tensor,
    value_pages: torch.Tensor,
    slots: torch.Tensor,
    mask: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    """Attention of one row of each of R requests, by torch's kernel on gathered keys and values.

    Args:
        query: (R, H, D).
        key_pages, value_pages: (num_blocks + 1, page_size, Hkv, D), with H a multiple of Hkv.
        slots, mask: (R, S), see `DecodeReads`.
        scale: a number.

    Returns:
        (R, H, D) in query's type.
    """
    keys, values = (_gather(pages, slots).transpose(1, 2) for pages in (key_pages, value_pages))
    return fused.fused_attention(query[:, :, None], keys, values, scale, mask[:, None, None])[:, :, 0]


def attend_decodes_in_place(
    query: torch.Tensor,
    key_pages: torch.Tensor,
    value_pages: torch.Tensor,
    slots: torch.Tensor,
    mask: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    """What `attend_decodes` computes, written for a compiler that fuses: sums which read the pages where they are.

    Run as it is written, it would hold S · H · D products for each row.
    """
    R, H, D = query.shape
    keys, values = (_gather(pages, slots).unsqueeze(3).float() for pages in (key_pages, value_pages))
    scores = (query.view(R, 1, keys.shape[2], -1, D) * keys).sum(-1) * scale + mask[:, :, None, None]
    weights = torch.softmax(scores, dim=1)
    return (weights.unsqueeze(-1) * values).sum(1).view(R, H, D).to(query.dtype)


def _gather(pages: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """(R, S, Hkv, D): keys or values of the slots (R, S)."""
    return pages.flatten(0, 1).index_select(0, slots.flatten()).unflatten(0, slots.shape)


def attend_packed(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    key_pages: torch.Tensor,
    value_pages: torch.Tensor,
    reads: StepReads,
    scale: float | None = None,
    decodes: Callable[..., torch.Tensor] = attend_decodes,
) -> torch.Tensor:
    """Day 3.3's `packed_attention`; the rows' own keys and values are in the pages already.

    Args:
        query: (T, H, D).
        key, value: (T, Hkv, D) of these rows.
        key_pages, value_pages: (num_blocks + 1, page_size, Hkv, D).
        reads: see `step_reads`.
        scale: 1/√D when None.
        decodes: takes the arguments of `attend_decodes`, and returns the same.

    Returns:
        (T, H, D) in query's type.
    """
    factor: float = query.shape[2] ** -0.5 if scale is None else scale
    heads = torch.empty_like(query)
    for chunk in reads.chunks:
        heads[chunk.rows] = attend_chunk(query, key, value, key_pages, value_pages, chunk, factor)
    for group in reads.decodes:
        found = decodes(query[group.rows], key_pages, value_pages, group.slots, group.mask, factor)
        heads.index_copy_(0, group.rows, found)
    return heads


def attend_chunk(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    key_pages: torch.Tensor,
    value_pages: torch.Tensor,
    chunk: ChunkReads,
    scale: float,
) -> torch.Tensor:
    """(L, H, D): attention of one request of several rows."""
    if chunk.slots is None:
        keys, values = key[chunk.rows], value[chunk.rows]
    else:
        keys, values = (
            pages.flatten(0, 1).index_select(0, chunk.slots) for pages in (key_pages, value_pages)
        )
    q, k, v = (part.transpose(0, 1)[None] for part in (query[chunk.rows], keys, values))
    causal = chunk.mask is None and chunk.rows.stop - chunk.rows.start > 1
    return fused.fused_attention(q, k, v, scale, chunk.mask, causal)[0].transpose(0, 1)
