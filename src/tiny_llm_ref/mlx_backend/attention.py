"""Attention: each query gets a mean of the values, weighted by how well their keys match it."""

import math

import mlx.core as mx

from .basics import linear, softmax


def scaled_dot_product_attention_simple(
    query: mx.array,
    key: mx.array,
    value: mx.array,
    scale: float | None = None,
    mask: mx.array | None = None,
) -> mx.array:
    """softmax(query @ keyᵀ · scale + mask) @ value (Vaswani et al., 2017, equation 1).

    Args:
        query: (..., L, D).
        key: (..., S, D).
        value: (..., S, D).
        scale: 1/√D when None.
        mask: added to the scores, broadcastable to (..., L, S); -inf hides a key.

    Returns:
        (..., L, D).
    """
    # TASK 1.1.3: compute the scores, scale them, add the mask, softmax over the keys, average the values.
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = query @ key.swapaxes(-2, -1) * scale
    if mask is not None:
        scores = scores + mask
    return softmax(scores, axis=-1) @ value


class SimpleMultiHeadAttention:
    """Multi-head attention: `num_heads` parallel heads of D = hidden_size / num_heads dimensions.

    Args:
        hidden_size: E, the width of the inputs; a multiple of `num_heads`.
        num_heads: H.
        wq, wk, wv: (H·D, E) projections.
        wo: (E, H·D) output projection.
    """

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        wq: mx.array,
        wk: mx.array,
        wv: mx.array,
        wo: mx.array,
    ):
        if hidden_size % num_heads:
            raise ValueError(f"hidden_size {hidden_size} is not a multiple of num_heads {num_heads}")
        self.num_heads = num_heads
        self.head_dim = hidden_size // num_heads
        self.wq, self.wk, self.wv, self.wo = wq, wk, wv, wo

    def __call__(
        self,
        query: mx.array,
        key: mx.array,
        value: mx.array,
        mask: mx.array | None = None,
    ) -> mx.array:
        """
        Args:
            query, key, value: (B, L, E).
            mask: added to the scores, broadcastable to (B, H, L, L).

        Returns:
            (B, L, E).
        """
        # TASK 1.1.4: project, split into heads (B, L, H·D) -> (B, H, L, D), attend, join, project.
        # Rows h·D to (h+1)·D - 1 of a projection belong to head h.
        B, L, _ = query.shape

        def split(x: mx.array, w: mx.array) -> mx.array:
            return linear(x, w).reshape(B, -1, self.num_heads, self.head_dim).swapaxes(1, 2)

        heads = scaled_dot_product_attention_simple(
            split(query, self.wq), split(key, self.wk), split(value, self.wv), mask=mask
        )
        return linear(heads.swapaxes(1, 2).reshape(B, L, -1), self.wo)


def causal_mask(L: int, S: int, dtype: mx.Dtype) -> mx.array:
    """The causal mask: each query sees its own key and all earlier keys, and no later ones.

    The queries are the last L of the S tokens: query i has position S - L + i, and the last query sees every key.

    Args:
        L: number of queries.
        S: number of keys, at least L: the queries' own keys are among them.
        dtype: type of the mask.

    Returns:
        (L, S): 0 where the key is visible, -inf where it is hidden.

    Raises:
        ValueError: L or S is not positive, or L > S.
    """
    # TASK 1.3.1: compare each query's position with each key's position; raise for an L and S that make no sense.
    if not 0 < L <= S:
        raise ValueError(f"causal_mask needs 0 < L <= S, not L={L}, S={S}: the keys include the queries' own")
    queries = mx.arange(S - L, S)[:, None]
    keys = mx.arange(S)
    return mx.where(keys <= queries, 0.0, -mx.inf).astype(dtype)


def scaled_dot_product_attention_grouped(
    query: mx.array,
    key: mx.array,
    value: mx.array,
    scale: float | None = None,
    mask: mx.array | str | None = None,
) -> mx.array:
    """Attention with fewer key and value heads than query heads (Ainslie et al., 2023).

    Query head h reads K/V head h // (H / Hkv). K and V are not repeated in memory.

    Args:
        query: (..., H, L, D).
        key: (..., Hkv, S, D).
        value: (..., Hkv, S, D).
        scale: 1/√D when None.
        mask: added to the scores, broadcastable to (..., H, L, S); or "causal" for `causal_mask(L, S)`.

    Returns:
        (..., H, L, D) in the type of `value`; scale, mask and softmax are computed in float32.

    Raises:
        ValueError: H is not a multiple of Hkv, or `mask` is a string other than "causal", or "causal" with L > S.
    """
    *batch, H, L, D = query.shape
    Hkv, S = key.shape[-3:-1]
    if H % Hkv:
        raise ValueError(f"{H} query heads cannot share {Hkv} K/V heads: H must be a multiple of Hkv")
    if isinstance(mask, str) and mask != "causal":
        raise ValueError(f'mask {mask!r} is unknown: give "causal", an array or None')
    # TASK 1.3.2: treat the H / Hkv heads of a group as additional query rows of their one K/V head.
    # Broadcasting K and V over the group works too, but torch's matmul copies what it broadcasts.
    scale = 1 / math.sqrt(D) if scale is None else scale
    scores = query.reshape(*batch, Hkv, -1, D) @ key.swapaxes(-2, -1)
    scores = scores.reshape(*batch, H, L, S).astype(mx.float32) * scale
    if isinstance(mask, str):
        mask = causal_mask(L, S, mx.float32)
    if mask is not None:
        scores = scores + mask
    weights = softmax(scores, axis=-1).astype(value.dtype)
    return (weights.reshape(*batch, Hkv, -1, S) @ value).reshape(*batch, H, L, -1)
