"""Attention: each query gets a mean of the values, weighted by how well their keys match it."""

import math

import torch

from .basics import linear, softmax


def scaled_dot_product_attention_simple(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scale: float | None = None,
    mask: torch.Tensor | None = None,
) -> torch.Tensor:
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
    raise NotImplementedError("week 1 day 1 task 3: scaled_dot_product_attention_simple")


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
        wq: torch.Tensor,
        wk: torch.Tensor,
        wv: torch.Tensor,
        wo: torch.Tensor,
    ):
        if hidden_size % num_heads:
            raise ValueError(f"hidden_size {hidden_size} is not a multiple of num_heads {num_heads}")
        self.num_heads = num_heads
        self.head_dim = hidden_size // num_heads
        self.wq, self.wk, self.wv, self.wo = wq, wk, wv, wo

    def __call__(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """
        Args:
            query, key, value: (B, L, E).
            mask: added to the scores, broadcastable to (B, H, L, L).

        Returns:
            (B, L, E).
        """
        # TASK 1.1.4: project, split into heads (B, L, H·D) -> (B, H, L, D), attend, join, project.
        # Rows h·D to (h+1)·D - 1 of a projection belong to head h.
        raise NotImplementedError("week 1 day 1 task 4: SimpleMultiHeadAttention.__call__")


def causal_mask(
    L: int, S: int, dtype: torch.dtype, *, device: torch.device | str | None = None
) -> torch.Tensor:
    """The causal mask: each query sees its own key and all earlier keys, and no later ones.

    The queries are the last L of the S tokens: query i has position S - L + i, and the last query sees every key.

    Args:
        L: number of queries.
        S: number of keys, at least L: the queries' own keys are among them.
        dtype: type of the mask.
        device: device of the mask; torch's default when None.

    Returns:
        (L, S): 0 where the key is visible, -inf where it is hidden.

    Raises:
        ValueError: L or S is not positive, or L > S.
    """
    # TASK 1.3.1: compare each query's position with each key's position; raise for an L and S that make no sense.
    raise NotImplementedError("week 1 day 3 task 1: causal_mask")


def scaled_dot_product_attention_grouped(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scale: float | None = None,
    mask: torch.Tensor | str | None = None,
) -> torch.Tensor:
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
    raise NotImplementedError("week 1 day 3 task 2: scaled_dot_product_attention_grouped")
