"""Attention of packed batches on a CPU by kernels of our own: nothing is gathered, and no mask is made."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from tiny_llm_engine.packed_model import PackedInputs

from ..native.attention import DecodeKernel, attend_prompt
from ..native.page_reads import PageReads, decode_runs, past_runs
from .cpu_attention import ChunkReads, attend_chunk, chunk_reads, own_mask, past_slots, rows_of_requests
from .native import attend_runs, kept_array, native_array


@dataclass(frozen=True)
class ChunkText:
    """What L rows of one request read.

    Args:
        rows: its rows of the step.
        slots: (S,) of its past and of these rows.
        window: how many tokens a row sees, itself included; None is all.
    """

    rows: slice
    slots: torch.Tensor
    window: int | None


def page_reads(
    inputs: PackedInputs,
    page_size: int,
    window: int | None = None,
    *,
    kernel: DecodeKernel,
    chunk_kernel: bool = True,
) -> PageReads:
    """Lists what each request of a step reads; takes the arguments of Day 3.3's `packed_mask`.

    Args:
        kernel: for decodes, of the solution in use.
        chunk_kernel: whether our own kernel computes chunks; otherwise torch's does.
    """
    runs = past_runs(inputs.decodes if window is None else inputs.window_decodes, page_size)
    decodes = decode_runs(runs, inputs.slots, kernel)
    past = past_slots(inputs.chunks, page_size)
    make = _chunk_text if chunk_kernel else chunk_reads
    chunks = [
        make(inputs, rows, past.get(rows.start), window)
        for rows in rows_of_requests(inputs)
        if rows.start not in runs
    ]
    return PageReads(chunks, decodes)


def _chunk_text(
    inputs: PackedInputs, rows: slice, past: torch.Tensor | None, window: int | None
) -> ChunkText:
    own = inputs.slots[rows]
    return ChunkText(rows, own if past is None else torch.cat([past, own]), window)


def attend_in_pages(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    key_pages: torch.Tensor,
    value_pages: torch.Tensor,
    reads: PageReads,
    scale: float | None = None,
) -> torch.Tensor:
    """Day 3.3's `packed_attention`; the rows' own keys and values are in the pages already.

    Args:
        query: (T, H, D).
        key, value: (T, Hkv, D) of these rows.
        key_pages, value_pages: (num_blocks + 1, page_size, Hkv, D), in query's type.
        reads: see `page_reads`.
        scale: 1/√D when None.

    Returns:
        (T, H, D) in query's type.
    """
    pages = key_pages, value_pages
    factor: float = query.shape[2] ** -0.5 if scale is None else scale
    if reads.decodes is not None and not reads.chunks:
        return attend_runs(query, *pages, reads.decodes, factor)  # of all rows, in their order
    heads = torch.empty_like(query)
    for chunk in reads.chunks:
        if isinstance(chunk, ChunkText):
            attend_text(query, *pages, chunk, heads, factor)
        else:
            heads[chunk.rows] = attend_chunk(query, key, value, *pages, chunk, factor)
    if reads.decodes is not None:
        rows = torch.frombuffer(reads.decodes.rows, dtype=torch.int64)
        heads.index_copy_(0, rows, attend_runs(query.index_select(0, rows), *pages, reads.decodes, factor))
    return heads


def attend_text(
    query: torch.Tensor,
    key_pages: torch.Tensor,
    value_pages: torch.Tensor,
    text: ChunkText,
    out: torch.Tensor,
    scale: float,
) -> None:
    """Attention of the rows of a chunk; no key or value is gathered, and no mask is made.

    Args:
        query: (T, H, D), of all rows of the step.
        key_pages, value_pages: (num_blocks + 1, page_size, Hkv, D), in query's type.
        text: see `ChunkText`.
        out: (T, H, D), in query's type; the rows of the chunk are written.
        scale: a number.
    """
    attend_prompt(
        native_array(query[text.rows]),
        kept_array(key_pages),
        kept_array(value_pages),
        native_array(text.slots),
        native_array(out[text.rows]),
        scale,
        text.window,
        torch.get_num_threads(),
    )


def chunk_ways(kernel: DecodeKernel) -> dict[str, Callable[..., torch.Tensor]]:
    """The ways to compute the attention of a chunk on this machine's CPU; nothing where there is no choice.

    Each takes (query (L, H, D), key and value (L, Hkv, D), key and value pages, slots (S,), scale), where the last L
    slots are those of the chunk, and returns (L, H, D).
    """
    if not kernel.works:
        return {}
    return {"usual": _attend_gathered, "native": _attend_by_kernel}


def _attend_gathered(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    key_pages: torch.Tensor,
    value_pages: torch.Tensor,
    slots: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    past = len(slots) - len(query)
    mask = None if past == 0 else own_mask(torch.arange(past, len(slots)), past, None)
    reads = ChunkReads(slice(0, len(query)), None if past == 0 else slots, mask)
    return attend_chunk(query, key, value, key_pages, value_pages, reads, scale)


def _attend_by_kernel(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    key_pages: torch.Tensor,
    value_pages: torch.Tensor,
    slots: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    out = torch.empty_like(query)
    attend_text(query, key_pages, value_pages, ChunkText(slice(0, len(query)), slots, None), out, scale)
    return out
