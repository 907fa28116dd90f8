"""Qwen3's attention: several query heads per head of keys, RoPE, and norms on queries and keys."""

import mlx.core as mx

from .attention import scaled_dot_product_attention_grouped
from .basics import linear
from .rope import RoPE


# GIVEN: Day 1.4 teaches this norm; until then the library's own is used.
def _head_norm(x: mx.array, weight: mx.array | None, eps: float) -> mx.array:
    """RMSNorm over the last axis: x / √(mean(x²) + eps) · weight. x is (..., D), weight (D,); x itself without one."""
    return x if weight is None else mx.fast.rms_norm(x, weight, eps)


class Qwen3MultiHeadAttention:
    """Qwen3's attention: grouped-query attention with RoPE and with norms on queries and keys.

    Args:
        hidden_size: E, the width of the inputs.
        num_heads: H, query heads; a multiple of `num_kv_heads`.
        num_kv_heads: Hkv, key and value heads.
        head_dim: D; H·D may differ from E.
        wq: (H·D, E). wk, wv: (Hkv·D, E). wo: (E, H·D).
        q_norm, k_norm: (D,) norm weights, one shared by all query heads, one by all key heads; None without norms.
        max_seq_len: number of positions in the RoPE tables, if the layer makes its own.
        theta: RoPE's base.
        rms_norm_eps: added to the mean square before the root.
        rope: tables shared by all layers of a model; the layer makes its own when None.

    Raises:
        ValueError: `num_heads` is not a multiple of `num_kv_heads`, or a weight has the wrong shape.
    """

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        wq: mx.array,
        wk: mx.array,
        wv: mx.array,
        wo: mx.array,
        q_norm: mx.array | None,
        k_norm: mx.array | None,
        max_seq_len: int = 32768,
        theta: float = 1000000,
        rms_norm_eps: float = 1e-5,
        *,
        rope: RoPE | None = None,
    ):
        if num_heads % num_kv_heads:
            raise ValueError(f"num_heads {num_heads} is not a multiple of num_kv_heads {num_kv_heads}")
        q_rows, kv_rows = num_heads * head_dim, num_kv_heads * head_dim
        for name, weight, shape in (
            ("wq", wq, (q_rows, hidden_size)),
            ("wk", wk, (kv_rows, hidden_size)),
            ("wv", wv, (kv_rows, hidden_size)),
            ("wo", wo, (hidden_size, q_rows)),
        ):
            if tuple(weight.shape) != shape:
                raise ValueError(f"{name} has shape {tuple(weight.shape)}, these heads need {shape}")
        self.num_heads, self.num_kv_heads, self.head_dim = num_heads, num_kv_heads, head_dim
        self.rms_norm_eps = rms_norm_eps
        self.wq, self.wk, self.wv, self.wo = wq, wk, wv, wo
        self.q_norm, self.k_norm = q_norm, k_norm
        self.rope = RoPE(head_dim, max_seq_len, theta) if rope is None else rope

    def __call__(self, x: mx.array, mask: mx.array | str | None = None) -> mx.array:
        """
        Args:
            x: (B, L, E), tokens at positions 0 … L - 1.
            mask: added to the scores, broadcastable to (B, H, L, L); or "causal".

        Returns:
            (B, L, E).
        """
        # TASK 1.3.3: project, split into heads (B, L, H, D), normalise q and k, rotate them, attend, join, project.
        # The norm comes before RoPE: it has one weight per dimension of a head, and RoPE mixes dimensions.
        B, L, _ = x.shape
        query = linear(x, self.wq).reshape(B, L, self.num_heads, self.head_dim)
        key = linear(x, self.wk).reshape(B, L, self.num_kv_heads, self.head_dim)
        value = linear(x, self.wv).reshape(B, L, self.num_kv_heads, self.head_dim)
        query = self.rope(_head_norm(query, self.q_norm, self.rms_norm_eps))
        key = self.rope(_head_norm(key, self.k_norm, self.rms_norm_eps))
        heads = scaled_dot_product_attention_grouped(
            query.swapaxes(1, 2), key.swapaxes(1, 2), value.swapaxes(1, 2), mask=mask
        )
        return linear(heads.swapaxes(1, 2).reshape(B, L, -1), self.wo)
