"""Paged attention: keys and values are read through a block table, page by page, and only the pages in use.

A page is a piece of the keys, so each page has its own statistics, and Day 2.4's merge combines them. All
requests of a decode step are computed at once: their pages are one flat list, and a one-hot matrix of pages and
requests carries queries to pages and results back. Shapes depend on the number of pages alone, never on a length.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from tiny_llm_engine.arrays.checks import check_pages
from tiny_llm_engine.arrays.mlx.quantized_pages import QuantizedPages

from ..serving.blocks.block_table import flat_blocks
from .flash_attention import Statistics, attention_statistics, finish_attention, flash_attention_tiled


def block_mask(block_usage: mx.array, page_size: int, block_starts: mx.array | None = None) -> mx.array:
    """Which slots of each page a decode step reads; made once per step and shared by all layers. Given.

    Args:
        block_usage: (N,) integers, one more than the last slot that is read.
        block_starts: (N,) integers, the first slot that is read; 0 when None.

    Returns:
        (N, page_size) float32: 0 where the slot is read, -inf elsewhere.
    """
    slots = mx.arange(page_size)
    seen = slots < block_usage[:, None]
    if block_starts is not None:
        seen = seen & (slots >= block_starts[:, None])
    return mx.where(seen, 0.0, -mx.inf)


def gather_pages(pages: mx.array, block_list: mx.array, mask: mx.array) -> mx.array:
    """The listed pages, one after the other, with 0 in every slot that is not read.

    Args:
        pages: (num_blocks + 1, page_size, Hkv, D), the keys or the values of one layer.
        block_list: (N,) integers; a page may be listed more than once.
        mask: (N, page_size): -inf where the slot is not read.

    Returns:
        (N, page_size, Hkv, D) in pages' type.
    """
    # TASK 3.2.2: take the listed pages, and replace what is hidden by 0.
    # A hidden value has the weight 0, and 0 · NaN is NaN: an old or unwritten slot may hold anything.
    hidden = (mask == -mx.inf)[:, :, None, None]
    return mx.where(hidden, mx.array(0, pages.dtype), pages[block_list])


def merge_blocks(blocks: Statistics, owners: mx.array) -> Statistics:
    """Day 2.4's merge for many pages at once: the statistics of all pages of a request become one.

    Args:
        blocks: (o, m, l) of N pages: (N, H, D), (N, H) and (N, H), float32.
        owners: (N, B) booleans, whether request b reads page n; a padding page belongs to no request.

    Returns:
        (o, m, l) of B requests: (B, H, D), (B, H) and (B, H), float32. A request without pages, or whose pages saw
        nothing, has o = 0, m = -inf, l = 0.
    """
    # TASK 3.2.3: the largest m among a request's pages; each page shrinks to it; the transposed matrix adds them up.
    # Where m is -inf shift by 0: -inf - (-inf) is NaN, and 0 · -inf in the product is NaN as well.
    o, m, l = blocks
    B = owners.shape[1]
    # By the number of each page's request, B for padding: (N, B, H) numbers would take 128 MiB for large batches.
    groups = mx.min(mx.where(owners, mx.arange(B), B), axis=1)
    largest = mx.full((B + 1, m.shape[1]), -mx.inf, m.dtype).at[groups].maximum(m)[:B]
    one_hot = owners.astype(m.dtype)
    shift = one_hot @ mx.where(largest == -mx.inf, 0, largest)
    shrink = mx.exp(m - shift)
    merged = one_hot.T @ (o * shrink[..., None]).flatten(1)
    return merged.reshape(-1, *o.shape[1:]), largest, one_hot.T @ (l * shrink)


def paged_decode_statistics(
    query: mx.array,
    key_pages: mx.array,
    value_pages: mx.array,
    block_list: mx.array,
    block_groups: mx.array,
    mask: mx.array,
    scale: float | None = None,
) -> Statistics:
    """Attention of one token of each of B requests over the pages that its request has in use.

    Work and bytes grow with N, the pages in use of all requests together, and not with B times the longest.

    Args:
        query: (B, H, D), row b of the request that `block_groups` calls b.
        key_pages, value_pages: (num_blocks + 1, page_size, Hkv, D), with H a multiple of Hkv.
        block_list: (N,) integers, the pages of all requests.
        block_groups: (N,) integers, whose page it is; B for a page of padding.
        mask: (N, page_size), as `block_mask` makes it.
        scale: 1/√D when None.

    Returns:
        (o, m, l), float32: (B, H, D), (B, H) and (B, H), to be merged with those of other keys, or finished.
    """
    # TASK 3.2.4: the one-hot matrix, each page's query by it, the statistics of each page, the merge.
    # A page with its one query is a batch row of Day 2.4: (N, H, 1, D) over (N, Hkv, page_size, D).
    B, H, D = query.shape
    owners = block_groups[:, None] == mx.arange(B)
    queries = (owners.astype(query.dtype) @ query.reshape(B, -1)).reshape(-1, H, 1, D)
    keys, values = (
        gather_pages(pages, block_list, mask).swapaxes(1, 2) for pages in (key_pages, value_pages)
    )
    o, m, l = attention_statistics(queries, keys, values, scale, mask[:, None, None])
    return merge_blocks((o[:, :, 0], m[..., 0], l[..., 0]), owners)


def past_mask(
    block_groups: mx.array,
    block_usage: mx.array,
    first_positions: mx.array,
    page_size: int,
    rows: mx.array,
    positions: mx.array,
    window: int | None = None,
) -> mx.array:
    """The slots of N pages that each of T prompt tokens sees, for any number of requests in one row.

    Made once per step and shared by all layers.

    Args:
        block_groups, block_usage, first_positions: (N,) integers, as `flat_blocks` lists them.
        rows: (T,) integers, the request of each token, as `block_groups` calls it; -1 for a token that has no pages.
        positions: (T,) integers, each token's position in its text.
        window: how many tokens are seen, the token itself included; None is all.

    Returns:
        (T, N · page_size) float32: 0 where the slot is of the token's own request, in use, at most at the token's own
        position and inside the window; -inf elsewhere.
    """
    # TASK 3.2.5: positions of all slots, then three or four comparisons, joined by &.
    # Compare integers as integers: 257 is not a bf16 number.
    slots = mx.arange(page_size)
    keys = first_positions[:, None] + slots
    own = (rows[:, None] == block_groups)[:, :, None]
    seen = own & (slots < block_usage[:, None]) & (keys <= positions[:, None, None])
    if window is not None:
        seen = seen & (keys > positions[:, None, None] - window)
    return mx.where(seen.flatten(1), 0.0, -mx.inf)


@dataclass(frozen=True)
class PastMask:
    """What T prompt tokens see of N pages, and what follows from it; made once per step, shared by all layers. Given.

    Args:
        bias: (T, N · page_size), as `past_mask` makes it.
        slots: (N, page_size): -inf where no token sees the slot, 0 elsewhere.
    """

    bias: mx.array
    slots: mx.array

    @classmethod
    def of(cls, bias: mx.array, num_pages: int) -> "PastMask":
        """The mask of N = `num_pages` pages."""
        return cls(bias, mx.max(bias, axis=0).reshape(num_pages, -1))


def paged_prompt_statistics(
    query: mx.array,
    key_pages: mx.array,
    value_pages: mx.array,
    block_list: mx.array,
    mask: PastMask,
    scale: float | None = None,
) -> Statistics:
    """Attention of T prompt tokens over pages that are gathered once for all of them.

    Args:
        query: (T, H, D).
        key_pages, value_pages: (num_blocks + 1, page_size, Hkv, D), with H a multiple of Hkv.
        block_list: (N,) integers, the pages that any of the tokens may see.
        mask: which slots each token sees; `mask.bias` is added to the scores.
        scale: 1/√D when None.

    Returns:
        (o, m, l), float32: (T, H, D), (T, H) and (T, H). A token that sees nothing has o = 0, m = -inf, l = 0.
    """
    # TASK 3.2.6: gather with 0 where no token looks, make the slots one axis of keys, take Day 2.4's statistics.
    # Your tiles never hold all T · S scores at once; they want (H, T, D).
    keys, values = (
        gather_pages(pages, block_list, mask.slots).flatten(0, 1).swapaxes(0, 1)
        for pages in (key_pages, value_pages)
    )
    queries = query.swapaxes(0, 1)
    o, m, l = flash_attention_tiled(queries, keys, values, scale, mask.bias, return_statistics=True)
    return o.swapaxes(0, 1), m.T, l.T


def paged_attention(
    query: mx.array,
    key_pages: mx.array,
    value_pages: mx.array,
    block_table: Sequence[Sequence[int]],
    context_lens: Sequence[int],
    page_size: int,
    scale: float | None = None,
    mask: str | None = None,
    *,
    window: int | None = None,
    scales: tuple[mx.array, mx.array] | None = None,
) -> mx.array:
    """Attention of the last L tokens of each of B requests over all their tokens, which are in pages. Given.

    Args:
        query: (B, H, L, D).
        key_pages, value_pages: (num_blocks + 1, page_size, Hkv, D), with H a multiple of Hkv; the last page is padding.
        block_table: for each request its pages in the order of its text.
        context_lens: for each request its tokens, the L new ones included.
        page_size: tokens in a page.
        scale: 1/√D when None.
        mask: "causal", or None: every query sees all tokens of its request.
        window: how many tokens a query sees, itself included; None is all. It goes with "causal".
        scales: of pages in int8, (num_blocks + 1, page_size, Hkv) bf16 for keys and for values, see `QuantizedPages`.

    Returns:
        (B, H, L, D) in query's type.

    Raises:
        ValueError: `page_size` is not that of the pages, `mask` is neither "causal" nor None, a window without
            "causal" for L > 1, or a table that is too short for its context.
    """
    check_pages(key_pages, page_size, query.shape[2], mask, window)
    keys: Any = key_pages
    values: Any = value_pages
    if scales is not None:
        keys, values = map(QuantizedPages, (keys, values), scales, (query.dtype, query.dtype))
    B, H, L, D = query.shape
    first = None if window is None else [max(n - L + 1 - window, 0) for n in context_lens]
    pad_block = key_pages.shape[0] - 1
    blocks = flat_blocks(block_table, context_lens, page_size, pad_block=pad_block, first_seen=first)
    block_list, groups, usage, starts, firsts = map(mx.array, blocks)
    tokens = query.swapaxes(1, 2).reshape(B * L, H, D)
    pages = (keys, values, block_list)
    if L == 1:
        slots = block_mask(usage, page_size, starts)
        statistics = paged_decode_statistics(tokens, *pages, groups, slots, scale)
    else:
        rows = mx.arange(B * L) // L
        lasts = mx.array(list(context_lens))[:, None] - 1
        before = mx.arange(1 - L, 1) if mask else mx.zeros_like(lasts)
        positions = mx.broadcast_to(lasts + before, (B, L)).flatten()
        past = past_mask(groups, usage, firsts, page_size, rows, positions, window)
        mask_of_pages = PastMask.of(past, block_list.shape[0])
        statistics = paged_prompt_statistics(tokens, *pages, mask_of_pages, scale)
    return finish_attention(statistics, query.dtype).reshape(B, L, H, D).swapaxes(1, 2)
