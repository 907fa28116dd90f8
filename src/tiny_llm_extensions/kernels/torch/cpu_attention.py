"""Attention of packed batches on a CPU, see `cpu_reads`."""

from collections.abc import Callable

import torch

from tiny_llm_engine.arrays.torch import fused
from tiny_llm_engine.packed_model import PackedInputs

from ..cpu_reads import ChunkReads, StepReads, request_reads


def step_reads(inputs: PackedInputs, page_size: int, window: int | None = None) -> StepReads:
    """Lists what each request of a step reads; takes the arguments of Day 3.3's `packed_mask`."""
    return request_reads(inputs, page_size, window, torch.from_numpy, has_causal=True)


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
