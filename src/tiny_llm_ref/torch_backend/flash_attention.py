"""Flash attention: exact attention, tile by tile, so that the L × S scores never exist all at once.

Attention of a query over some of the keys is kept as three *statistics*: o, the sum of the values weighted by
exp(score - m); m, the largest score; l, the sum of the weights. Statistics of different keys can be merged, and the
output is o / l.
"""

import math

import torch

from tiny_llm_engine.arrays.checks import check_attention
from tiny_llm_engine.arrays.torch import fused

from .attention import causal_mask

Statistics = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def attention_statistics(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scale: float | None = None,
    mask: torch.Tensor | None = None,
) -> Statistics:
    """Attention without the final division, so that further keys can be merged.

    Query head h reads K/V head h // (H / Hkv), as on Day 1.3. No head of K or V is repeated in memory.

    Args:
        query: (..., H, L, D).
        key: (..., Hkv, S, D).
        value: (..., Hkv, S, D).
        scale: 1/√D when None.
        mask: added to the scores, broadcastable to (..., H, L, S); -inf hides a key.

    Returns:
        (o, m, l), all float32: o (..., H, L, D), the sum of exp(score - m) · value; m (..., H, L), the largest score;
        l (..., H, L), the sum of exp(score - m). A query that sees no key has o = 0, m = -inf, l = 0.
    """
    # TASK 2.4.1: Day 1.3's scores, float32 after the product; their maximum, the weights exp(score - m), the two sums.
    # A query that sees no key has the maximum -inf, and -inf - (-inf) is NaN: shift its scores by 0 instead.
    *batch, H, L, D = query.shape
    Hkv, S = key.shape[-3:-1]
    scale = 1 / math.sqrt(D) if scale is None else scale
    scores = query.reshape(*batch, Hkv, -1, D) @ key.transpose(-2, -1)
    scores = scores.reshape(*batch, H, L, S).float() * scale
    if mask is not None:
        scores = scores + mask
    m = torch.amax(scores, dim=-1)
    weights = torch.exp(scores - torch.where(m == -torch.inf, 0, m)[..., None])
    o = weights.to(value.dtype).reshape(*batch, Hkv, -1, S) @ value
    return o.reshape(*batch, H, L, -1).float(), m, torch.sum(weights, dim=-1)


def merge_attention(a: Statistics, b: Statistics) -> Statistics:
    """Merges the statistics of two sets of keys (Milakov and Gimelshein, 2018).

    Args:
        a, b: (o, m, l) of the same queries over two disjoint sets of keys. Where a query sees no key of a set, o = 0,
            m = -inf, l = 0.

    Returns:
        (o, m, l) over both sets. The order of a and b does not matter.
    """
    # TASK 2.4.2: take the larger maximum for both; the sums made with the smaller one shrink by exp(smaller - larger).
    # Where neither side saw a key, -inf - (-inf) would be NaN again.
    (o_a, m_a, l_a), (o_b, m_b, l_b) = a, b
    m = torch.maximum(m_a, m_b)
    shift = torch.where(m == -torch.inf, 0, m)
    shrink_a, shrink_b = torch.exp(m_a - shift), torch.exp(m_b - shift)
    o = o_a * shrink_a[..., None] + o_b * shrink_b[..., None]
    return o, m, l_a * shrink_a + l_b * shrink_b


def finish_attention(statistics: Statistics, dtype: torch.dtype) -> torch.Tensor:
    """The output of attention, o / l, after all keys were merged.

    Args:
        statistics: (o, m, l): (..., H, L, D), (..., H, L) and (..., H, L).
        dtype: type of the output.

    Returns:
        (..., H, L, D). A query that saw no key gives exactly 0.
    """
    # TASK 2.4.3: the one division. Where l is 0, so is o: divide by 1 there.
    o, _, l = statistics
    return (o / torch.where(l == 0, 1, l)[..., None]).to(dtype)


def mask_tile(
    mask: torch.Tensor | str | None,
    L: int,
    S: int,
    rows: slice,
    columns: slice,
    *,
    device: torch.device | str | None = None,
) -> torch.Tensor | None:
    """One tile of a mask, made without the whole (L, S) array.

    Args:
        mask: None; an array broadcastable to (..., L, S); or "causal": the last of the L queries sees all S keys.
        L: number of all queries.
        S: number of all keys, at least L for "causal".
        rows, columns: slices of the queries and of the keys, with start and stop and without a step.
        device: device of a "causal" tile; torch's default when None.

    Returns:
        (..., rows, columns) to add to the scores: 0 visible, -inf hidden. None if `mask` is None, or if "causal" hides
        nothing in this tile.
    """
    # TASK 2.4.4: broadcast an array, which copies nothing, and slice it; "causal" compares positions, as on Day 1.3.
    # If the first of these queries sees the last of these keys, all see all of them, and there is nothing to add.
    if mask is None:
        return None
    if not isinstance(mask, str):
        # Not torch.broadcast_shapes: its first call imports sympy, which takes a second.
        return torch.broadcast_tensors(mask, mask.new_empty(1).expand(L, S))[0][..., rows, columns]
    past = S - L
    if columns.stop - 1 <= past + rows.start:
        return None
    queries = torch.arange(past + rows.start, past + rows.stop, device=device)[:, None]
    keys = torch.arange(columns.start, columns.stop, device=device)
    return torch.where(keys <= queries, 0.0, -torch.inf)


def flash_attention_tiled(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scale: float | None = None,
    mask: torch.Tensor | str | None = None,
    tile_size: int = 128,
    return_statistics: bool = False,
) -> torch.Tensor | Statistics:
    """Attention in tiles of queries and keys, without an L × S array (Dao et al., 2022).

    Besides the output it holds only a few tiles: its memory grows with `tile_size`, not with S.

    Args:
        query: (..., H, L, D).
        key: (..., Hkv, S, D), with H a multiple of Hkv.
        value: (..., Hkv, S, D).
        scale: 1/√D when None.
        mask: added to the scores, broadcastable to (..., H, L, S); or "causal": the last query sees all S keys.
        tile_size: queries and keys per tile; any positive number.
        return_statistics: return the statistics, to be merged with those of other keys, instead of the output.

    Returns:
        (..., H, L, D) in the type of `value`, exactly 0 for a query that sees no key; or (o, m, l) in float32, as
        `attention_statistics` returns them.

    Raises:
        ValueError: H is not a multiple of Hkv, `mask` is a string other than "causal", or "causal" with L > S, or
            `tile_size` is not positive.
    """
    check_attention(query, key, mask)
    if tile_size < 1:
        raise ValueError(f"tile_size must be positive, not {tile_size}")
    L, S = query.shape[-2], key.shape[-2]
    finished: list[tuple[torch.Tensor, ...]] = []  # of each tile of queries: (o, m, l), or the output alone
    # TASK 2.4.5: for every tile of queries, loop over the tiles of keys that it can see, merge, and finish.
    # A slice is a view, and torch frees a tile as soon as it is merged: the memory needs no further care.
    causal = isinstance(mask, str)
    if causal and L > S:
        raise ValueError(
            f"causal attention needs L <= S, not L={L}, S={S}: the keys include the queries' own"
        )
    for top in range(0, L, tile_size):
        rows, merged = slice(top, min(top + tile_size, L)), None
        for left in range(0, S - L + rows.stop if causal else S, tile_size):
            columns = slice(left, min(left + tile_size, S))
            q, k, v = query[..., rows, :], key[..., columns, :], value[..., columns, :]
            bias = mask_tile(mask, L, S, rows, columns, device=query.device)
            tile = attention_statistics(q, k, v, scale, bias)
            merged = tile if merged is None else merge_attention(merged, tile)
        assert merged is not None  # there is a key
        finished.append(merged if return_statistics else (finish_attention(merged, value.dtype),))
    # END TASK
    # Queries are the second-to-last axis of o and of the output, and the last axis of m and l.
    joined = [torch.cat(parts, dim=-1 if i else -2) for i, parts in enumerate(zip(*finished, strict=True))]
    return (joined[0], joined[1], joined[2]) if return_statistics else joined[0]


def fused_statistics(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scale: float | None,
    bias: torch.Tensor,
    seen: torch.Tensor | None = None,
) -> Statistics:
    """Statistics of queries over keys, in one kernel where the library has one. Given, for Week 3.

    A kernel may use another m than the largest score: only o · exp(m) and l · exp(m) matter, since merging and the
    final division use nothing else.

    Args:
        query: (B, H, L, D).
        key, value: (B, Hkv, S, D) in query's type, with H a multiple of Hkv; never repeated.
        scale: 1/√D when None.
        bias: added to the scores, (L, S) or (B, 1, L, S), the same for all heads; -inf hides a key.
        seen: (L,) or (B, 1, L) booleans, the queries that see a key, for a kernel that needs them.

    Returns:
        (o, m, l), as `attention_statistics` returns them.
    """
    if fused.has_statistics_kernel(query):
        return fused.fused_statistics(query, key, value, scale, bias, seen)
    bias = bias.expand(query.shape[0], 1, query.shape[2], key.shape[2])
    if query.shape[2] == 1:
        return attention_statistics(query, key, value, scale, bias)
    o, m, l = flash_attention_tiled(query, key, value, scale, bias, return_statistics=True)
    return (o, m, l) if seen is None else fused.statistics_of_seen(bias, seen, o, m, l)


def fused_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scale: float | None = None,
    mask: torch.Tensor | None = None,
    is_causal: bool = False,
    *,
    may_hide_all: bool = True,
) -> torch.Tensor:
    """One call of the device's own attention kernel: Gaudi's FusedSDPA, elsewhere `F.scaled_dot_product_attention`.

    The kernel takes a mask or causality, never both, and does not need repeated K/V heads.

    Args:
        query: (B, H, L, D).
        key: (B, Hkv, S, D), with H a multiple of Hkv, in query's type.
        value: (B, Hkv, S, D), in query's type.
        scale: 1/√D when None.
        mask: added to the scores, broadcastable to (B, H, L, S); cast to query's type, so bf16 queries round it to
            bf16.
        is_causal: the kernel's own causality, only for L = S. Not together with `mask`.
        may_hide_all: whether the mask may hide all keys of a query. False saves reading it once more in every layer: a
            model's own masks always show a token its own key.

    Returns:
        (B, H, L, D) in query's type. A query whose keys are all masked gives exactly 0, if `may_hide_all`.
    """
    # TASK 2.5.1: set the default scale, cast the mask, call the kernel; then 0 for the queries that see no key.
    # What a kernel leaves in their rows is undefined and may be NaN: replace it, do not multiply it by 0.
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    bias = None if mask is None else mask.to(query.dtype)
    out = fused.fused_attention(query, key, value, scale, bias, is_causal)
    if mask is None or not may_hide_all:
        return out
    return torch.where(torch.any(mask > -torch.inf, dim=-1, keepdim=True), out, 0)


def flash_attention_device(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scale: float | None = None,
    mask: torch.Tensor | str | None = None,
    *,
    may_hide_all: bool = True,
) -> torch.Tensor:
    """Attention by the device's kernel, with the same results as `flash_attention_tiled`.

    Args:
        query: (B, H, L, D).
        key: (B, Hkv, S, D), with H a multiple of Hkv, in query's type.
        value: (B, Hkv, S, D), in query's type.
        scale: 1/√D when None.
        mask: added to the scores, broadcastable to (B, H, L, S), cast to query's type; or "causal": the last query sees
            all S keys.
        may_hide_all: see `fused_attention`.

    Returns:
        (B, H, L, D) in query's type, exactly 0 for a query that sees no key if `may_hide_all`.

    Raises:
        ValueError: H is not a multiple of Hkv, `mask` is another word than "causal", or causal with L > S.
    """
    check_attention(query, key, mask)
    # TASK 2.5.2: make "causal" mean for the kernel what it means for us: for L < S, for L = 1, and not for L > S.
    # torch's causal triangle starts at the first key, and Gaudi's is for L = S: in other cases pass a mask.
    if not isinstance(mask, str):
        return fused_attention(query, key, value, scale, mask, may_hide_all=may_hide_all)
    L, S = query.shape[-2], key.shape[-2]
    if L == S:
        return fused_attention(query, key, value, scale, is_causal=True)
    mask = None if L == 1 else causal_mask(L, S, query.dtype, device=query.device)
    return fused_attention(query, key, value, scale, mask, may_hide_all=False)


def flash_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scale: float | None = None,
    mask: torch.Tensor | str | None = None,
    *,
    path: str = "tiled",
) -> torch.Tensor:
    """Exact attention without an L × S array, on one of two paths.

    Args:
        query: (B, H, L, D).
        key, value: (B, Hkv, S, D), with H a multiple of Hkv.
        scale: 1/√D when None.
        mask: added to the scores, broadcastable to (B, H, L, S); or "causal": the last query sees all S keys.
        path: "tiled", our own tiles (Day 2.4), or "device", the device's kernel (Day 2.5).

    Returns:
        (B, H, L, D) in the type of `value`, 0 for a query that sees no key.

    Raises:
        ValueError: `path` has another value, or the arguments do not fit.
    """
    paths = {"tiled": flash_attention_tiled, "device": flash_attention_device}
    if path not in paths:
        raise ValueError(f'path {path!r} is unknown: give "tiled" or "device"')
    return paths[path](query, key, value, scale, mask)
