"""Attention of packed batches on a CPU, see `cpu_reads`.

No score of one request with another is computed: an exponential of MLX takes 25 ns on an x86 CPU, as much as thousands
of products.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain

import mlx.core as mx
import numpy as np

from tiny_llm_engine.arrays.mlx.quantized_pages import QuantizedPages
from tiny_llm_engine.packed_model import PackedInputs

from ..cpu_reads import ChunkReads, DecodeReads, StepReads, request_reads


@dataclass(frozen=True)
class OrderedReads(StepReads):
    """What all rows of a step read.

    Args:
        order: (T,) the place of each row among those of all chunks and then of all decodes.
    """

    order: mx.array


def step_reads(inputs: PackedInputs, page_size: int, window: int | None = None) -> OrderedReads:
    """Lists what each request of a step reads; takes the arguments of Day 3.3's `packed_mask`."""
    reads = request_reads(inputs, page_size, window, mx.array, has_causal=False)
    of_chunks = chain(*(range(chunk.rows.start, chunk.rows.stop) for chunk in reads.chunks))
    computed = [*of_chunks, *chain(*(group.rows.tolist() for group in reads.decodes))]
    return OrderedReads(reads.chunks, reads.decodes, mx.array(np.argsort(computed)))


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
    reads: OrderedReads,
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
