"""Attention over one row of many requests: three sets of keys, which are merged by their statistics (Day 2.4)."""

from dataclasses import dataclass
from typing import Generic, TypeVar

import mlx.core as mx

from tiny_llm_engine.packed_model import PackedInputs

from .flash_attention import Statistics, finish_attention, fused_statistics, merge_attention
from .paged_attention import PastMask, block_mask, paged_decode_statistics, paged_prompt_statistics, past_mask

Mask = TypeVar("Mask", PastMask, mx.array)


@dataclass(frozen=True)
class PastPages(Generic[Mask]):
    """The pages that P rows of a step read, N in all.

    Args:
        rows: (P,) rows of the step.
        block_list: (N,) the pages.
        block_groups: (N,) whose page it is.
        mask: what the rows see: a `PastMask` for chunks, (N, page_size) for decodes.
    """

    rows: mx.array
    block_list: mx.array
    block_groups: mx.array
    mask: Mask


@dataclass(frozen=True)
class PackedMask:
    """The masks of a step; made once, and shared by all layers.

    Args:
        own: (T, T), the rows among themselves.
        chunks: what rows of chunks read of their past; None when no chunk has one.
        decodes: the same for requests of one row.
    """

    own: mx.array
    chunks: PastPages[PastMask] | None = None
    decodes: PastPages[mx.array] | None = None


def segment_mask(segments: mx.array, positions: mx.array, window: int | None = None) -> mx.array:
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
    raise NotImplementedError("week 3 day 3 task 6: segment_mask")


def packed_mask(inputs: PackedInputs, page_size: int, window: int | None = None) -> PackedMask:
    """The masks of a step. Given.

    Args:
        inputs: arrays.
        page_size: tokens per page.
        window: of layers with a sliding window; None for all others.
    """
    chunks, decodes = inputs.chunks, inputs.decodes if window is None else inputs.window_decodes
    if chunks is not None:
        pages, positions = chunks.blocks, inputs.positions[chunks.rows]
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
    query: mx.array,
    key: mx.array,
    value: mx.array,
    scale: float | None,
    mask: mx.array,
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
    query, key, value = (part.swapaxes(0, 1) for part in (query, key, value))
    o, m, l = fused_statistics(query, key, value, scale, mask)
    return o.swapaxes(0, 1), m.T, l.T


def merge_rows(statistics: Statistics, rows: mx.array, past: Statistics) -> Statistics:
    """Merges what some rows have seen of their past into the statistics of all rows. Given.

    Args:
        statistics: (o, m, l) of T rows.
        rows: (P,) integers, which of them; each once.
        past: (o, m, l) of these P rows.
    """
    o, m, l = (part[rows] for part in statistics)
    merged = merge_attention((o, m, l), past)
    for part, new in zip(statistics, merged, strict=True):
        part[rows] = new
    return statistics


def packed_attention(
    query: mx.array,
    key: mx.array,
    value: mx.array,
    key_pages: mx.array,
    value_pages: mx.array,
    mask: PackedMask,
    scale: float | None = None,
) -> mx.array:
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
    raise NotImplementedError("week 3 day 3 task 7: packed_attention")
