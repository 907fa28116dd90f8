"""Qwen3 without a cache: the whole text is computed at every step (Week 1)."""

import torch

from tiny_llm_engine.models.layer_weights import NO_HEAD_NORMS, Checkpoint, layer_weights

from .basics import Embedding, RMSNorm, linear
from .qwen3_attention import Qwen3MultiHeadAttention
from .qwen3_mlp import Qwen3MLP
from .rope import RoPE


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
        wq: torch.Tensor,
        wk: torch.Tensor,
        wv: torch.Tensor,
        wo: torch.Tensor,
        q_norm: torch.Tensor | None,
        k_norm: torch.Tensor | None,
        w_gate: torch.Tensor,
        w_up: torch.Tensor,
        w_down: torch.Tensor,
        w_input_layernorm: torch.Tensor,
        w_post_attention_layernorm: torch.Tensor,
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

    def __call__(self, x: torch.Tensor, mask: torch.Tensor | str | None = None) -> torch.Tensor:
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
        rope = RoPE(config.head_dim, config.context, config.rope_theta)
        self.layers = [_layer(checkpoint, index, rope) for index in range(config.num_hidden_layers)]
        norm = checkpoint.weight("model.norm.weight", hidden_size)
        self.norm = RMSNorm(hidden_size, norm, config.rms_norm_eps)
        # A tied model has no separate head: it scores tokens with its embedding table.
        tied = config.tie_word_embeddings
        self.w_lm_head = None if tied else checkpoint.weight("lm_head.weight", vocab_size, hidden_size)

    def __call__(self, inputs: torch.Tensor) -> torch.Tensor:
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
