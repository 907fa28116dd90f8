"""Qwen3 without a cache: the whole text is computed at every step (Week 1)."""

import mlx.core as mx

from ..layer_weights import NO_HEAD_NORMS, Checkpoint, layer_weights
from .attention import scaled_dot_product_attention_grouped
from .basics import linear, silu
from .embedding import Embedding
from .rms_norm import RMSNorm
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


class Qwen3MLP:
    """The MLP of a layer, applied to each token: w_down @ (silu(w_gate @ x) · (w_up @ x)) (Shazeer, 2020).

    Args:
        dim: E, the width of the inputs.
        hidden_dim: F, the inner width.
        w_gate, w_up: (F, E).
        w_down: (E, F).

    Raises:
        ValueError: a weight has the wrong shape.
    """

    def __init__(self, dim: int, hidden_dim: int, w_gate: mx.array, w_up: mx.array, w_down: mx.array):
        for name, weight, shape in (
            ("w_gate", w_gate, (hidden_dim, dim)),
            ("w_up", w_up, (hidden_dim, dim)),
            ("w_down", w_down, (dim, hidden_dim)),
        ):
            if tuple(weight.shape) != shape:
                raise ValueError(f"{name} has shape {tuple(weight.shape)}, this MLP needs {shape}")
        self.w_gate, self.w_up, self.w_down = w_gate, w_up, w_down

    def __call__(self, x: mx.array) -> mx.array:
        """
        Args:
            x: (..., E).

        Returns:
            (..., E).
        """
        # TASK 1.4.3: project up to F twice, multiply one result by the SiLU of the other, and project down again.
        return linear(silu(linear(x, self.w_gate)) * linear(x, self.w_up), self.w_down)


class Qwen3TransformerBlock:
    """One layer: attention, then the MLP, each with a norm before it and a residual connection.

    Args:
        num_attention_heads, num_kv_heads, head_dim: Hq, Hkv and D of the attention.
        hidden_size: E, the width of the residual stream.
        intermediate_size: F, the inner width of the MLP.
        rms_norm_eps: eps of every norm of the layer.
        wq, wk, wv, wo, q_norm, k_norm: see `Qwen3MultiHeadAttention`.
        w_gate, w_up, w_down: see `Qwen3MLP`.
        w_input_layernorm: (E,), the norm before attention.
        w_post_attention_layernorm: (E,), the norm after attention and before the MLP.
        max_seq_len, theta, rope: see `Qwen3MultiHeadAttention`.
    """

    def __init__(
        self,
        num_attention_heads: int,
        num_kv_heads: int,
        hidden_size: int,
        head_dim: int,
        intermediate_size: int,
        rms_norm_eps: float,
        wq: mx.array,
        wk: mx.array,
        wv: mx.array,
        wo: mx.array,
        q_norm: mx.array | None,
        k_norm: mx.array | None,
        w_gate: mx.array,
        w_up: mx.array,
        w_down: mx.array,
        w_input_layernorm: mx.array,
        w_post_attention_layernorm: mx.array,
        max_seq_len: int = 32768,
        theta: float = 1000000,
        *,
        rope: RoPE | None = None,
    ):
        heads = (num_attention_heads, num_kv_heads, head_dim)
        attention_weights = (wq, wk, wv, wo, q_norm, k_norm)
        self.input_layernorm = RMSNorm(hidden_size, w_input_layernorm, rms_norm_eps)
        self.self_attn = Qwen3MultiHeadAttention(
            hidden_size, *heads, *attention_weights, max_seq_len, theta, rms_norm_eps, rope=rope
        )
        self.post_attention_layernorm = RMSNorm(hidden_size, w_post_attention_layernorm, rms_norm_eps)
        self.mlp = Qwen3MLP(hidden_size, intermediate_size, w_gate, w_up, w_down)

    def __call__(self, x: mx.array, mask: mx.array | str | None = None) -> mx.array:
        """
        Args:
            x: (B, L, E), the residual stream: tokens at positions 0 … L - 1.
            mask: attention mask, see `Qwen3MultiHeadAttention`.

        Returns:
            (B, L, E), the residual stream after this layer.
        """
        # TASK 1.5.3: the same step twice: normalise a copy, apply attention or the MLP to it, add the result.
        # The residual stream itself is never normalised between the layers.
        x = x + self.self_attn(self.input_layernorm(x), mask)
        return x + self.mlp(self.post_attention_layernorm(x))


class Qwen3ModelWeek1:
    """Qwen3 without a cache: token ids in, logits of the next token for every position out.

    Args:
        checkpoint: the weights, used without a copy.

    Raises:
        CheckpointError: the model has biases, windows, experts or a scaled RoPE, or a weight is missing or does not
            have the shape that follows from `checkpoint.config`.
    """

    def __init__(self, checkpoint: Checkpoint):
        self.config = config = checkpoint.config
        config.require_plain("Week 1's model")
        vocab_size, hidden_size = config.vocab_size, config.hidden_size
        self.num_hidden_layers = config.num_hidden_layers
        table = checkpoint.weight("model.embed_tokens.weight", vocab_size, hidden_size)
        self.embedding = Embedding(vocab_size, hidden_size, table)
        # All layers rotate by the same angles, so they share one pair of tables.
        rope = RoPE(config.head_dim, config.max_position_embeddings, config.rope_theta)
        self.layers = [_layer(checkpoint, index, rope) for index in range(config.num_hidden_layers)]
        norm = checkpoint.weight("model.norm.weight", hidden_size)
        self.norm = RMSNorm(hidden_size, norm, config.rms_norm_eps)
        # A tied model has no separate head: it scores tokens with its embedding table.
        tied = config.tie_word_embeddings
        self.w_lm_head = None if tied else checkpoint.weight("lm_head.weight", vocab_size, hidden_size)

    def __call__(self, inputs: mx.array) -> mx.array:
        """
        Args:
            inputs: (B, L) token ids; token i has position i.

        Returns:
            (B, L, V) logits: row i scores the token after token i, and depends on tokens 0 … i only.
        """
        # TASK 1.5.4: embed, apply every layer in turn with the causal mask, the last norm, the head.
        x = self.embedding(inputs)
        for layer in self.layers:
            x = layer(x, mask="causal")
        x = self.norm(x)
        return self.embedding.as_linear(x) if self.w_lm_head is None else linear(x, self.w_lm_head)


def _layer(checkpoint: Checkpoint, index: int, rope: RoPE) -> Qwen3TransformerBlock:
    """Builds layer `index` from its weights."""
    config = checkpoint.config
    return Qwen3TransformerBlock(
        num_attention_heads=config.num_attention_heads,
        num_kv_heads=config.num_key_value_heads,
        hidden_size=config.hidden_size,
        head_dim=config.head_dim,
        intermediate_size=config.intermediate_size,
        rms_norm_eps=config.rms_norm_eps,
        **NO_HEAD_NORMS | layer_weights(checkpoint, index),
        rope=rope,
    )
