"""Attention over one row of many requests: three sets of keys, which are merged by their statistics (Day 2.4)."""

from dataclasses import dataclass
from typing import Generic, TypeVar

import torch

from tiny_llm_engine.packed_model import PackedInputs

from .flash_attention import Statistics, finish_attention, fused_statistics, merge_attention
from .paged_attention import PastMask, block_mask, paged_decode_statistics, paged_prompt_statistics, past_mask

Mask = TypeVar("Mask", PastMask, torch.Tensor)


@dataclass(frozen=True)
class PastPages(Generic[Mask]):
    """The pages that P rows of a step read, N in all.

    Args:
        rows: (P,) rows of the step.
        block_list: (N,) the pages.
        block_groups: (N,) whose page it is.
        mask: what the rows see: a `PastMask` for chunks, (N, page_size) for decodes.
    """

    rows: torch.Tensor
    block_list: torch.Tensor
    block_groups: torch.Tensor
    mask: Mask


@dataclass(frozen=True)
class PackedMask:
    """The masks of a step; made once, and shared by all layers.

    Args:
        own: (T, T), the rows among themselves.
        chunks: what rows of chunks read of their past; None when no chunk has one.
        decodes: the same for requests of one row.
    """

    own: torch.Tensor
    chunks: PastPages[PastMask] | None = None
    decodes: PastPages[torch.Tensor] | None = None


def segment_mask(segments: torch.Tensor, positions: torch.Tensor, window: int | None = None) -> torch.Tensor:
    """The mask of the T rows of a step among themselves; the rows of a request are consecutive.

    Args:
        segments: (T,) integers, the request of each row.
        positions: (T,) integers, each row's position in its request's text.
        window: how many tokens a row sees, itself included; None is all.

    Returns:
        (T, T) float32: 0 where the key is of the same request, at most at the query's position and inside the window;
        -inf elsewhere.
    """
    # TASK 3.3.6: compare requests with requests and positions with positions; the place in the row means nothing.
    # Integers all the way: in float16 position 2,049 does not exist.
    seen = (segments[:, None] == segments) & (positions <= positions[:, None])
    if window is not None:
        seen = seen & (positions > positions[:, None] - window)
    return torch.where(seen, 0.0, -torch.inf)


def packed_mask(inputs: PackedInputs, page_size: int, window: int | None = None) -> PackedMask:
    """The masks of a step. Given.

    Args:
        inputs: arrays.
        page_size: tokens per page.
        window: of layers with a sliding window; None for all others.
    """
    chunks, decodes = inputs.chunks, inputs.decodes if window is None else inputs.window_decodes
    if chunks is not None:
        pages, positions = chunks.blocks, inputs.positions.index_select(0, chunks.rows)
        listed = pages.block_groups, pages.block_usage, pages.first_positions
        mask = past_mask(*listed, page_size, chunks.groups, positions, window)
        mask = PastMask.of(mask, pages.block_list.shape[0])
        chunks = PastPages(chunks.rows, pages.block_list, pages.block_groups, mask)
    if decodes is not None:
        pages = decodes.blocks
        mask = block_mask(pages.block_usage, page_size, pages.block_starts)
        decodes = PastPages(decodes.rows, pages.block_list, pages.block_groups, mask)
    return PackedMask(segment_mask(inputs.segments, inputs.positions, window), chunks, decodes)


def own_statistics(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scale: float | None,
    mask: torch.Tensor,
) -> Statistics:
    """Statistics of the rows among themselves, with the rows in front: `attention_statistics` of (T, H, D). Given.

    Args:
        query: (T, H, D).
        key, value: (T, Hkv, D).
        scale: 1/√D when None.
        mask: (T, T), added to the scores.

    Returns:
        (o, m, l), float32: (T, H, D), (T, H) and (T, H).
    """
    query, key, value = (part.transpose(0, 1)[None] for part in (query, key, value))
    # A row sees itself or nothing, so its number on the diagonal says whether it sees a key.
    o, m, l = fused_statistics(query, key, value, scale, mask, mask.diagonal() == 0)
    return o[0].transpose(0, 1), m[0].T, l[0].T


def merge_rows(statistics: Statistics, rows: torch.Tensor, past: Statistics) -> Statistics:
    """Merges what some rows have seen of their past into the statistics of all rows. Given.

    Args:
        statistics: (o, m, l) of T rows.
        rows: (P,) integers, which of them; each once.
        past: (o, m, l) of these P rows.
    """
    o, m, l = (part.index_select(0, rows) for part in statistics)
    merged = merge_attention((o, m, l), past)
    o, m, l = (part.index_copy(0, rows, new) for part, new in zip(statistics, merged, strict=True))
    return o, m, l


def packed_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    key_pages: torch.Tensor,
    value_pages: torch.Tensor,
    mask: PackedMask,
    scale: float | None = None,
) -> torch.Tensor:
    """Attention of T rows of many requests, each over its own text.

    The keys of a row are in up to three disjoint sets: those of its request in this step, the shared past of all rows
    of its chunk, or the past that it alone reads as a decode (after the unified attention of vllm-gaudi, 2025).

    Args:
        query: (T, H, D).
        key, value: (T, Hkv, D), of this step.
        key_pages, value_pages: (num_blocks + 1, page_size, Hkv, D), of earlier steps.
        mask: which keys each row sees.
        scale: 1/√D when None.

    Returns:
        (T, H, D) in the type of `value`.
    """
    # TASK 3.3.7: statistics of the rows among themselves; those of each past, for its rows alone; merge; divide once.
    # `paged_prompt_statistics` is for chunks, `paged_decode_statistics` for decodes. A part may be None.
    statistics = own_statistics(query, key, value, scale, mask.own)
    if mask.chunks is not None:
        part = mask.chunks
        rows = query.index_select(0, part.rows)
        past = paged_prompt_statistics(rows, key_pages, value_pages, part.block_list, part.mask, scale)
        statistics = merge_rows(statistics, part.rows, past)
    if mask.decodes is not None:
        part = mask.decodes
        rows = query.index_select(0, part.rows)
        pages = key_pages, value_pages, part.block_list, part.block_groups
        past = paged_decode_statistics(rows, *pages, part.mask, scale)
        statistics = merge_rows(statistics, part.rows, past)
    return finish_attention(statistics, value.dtype)
