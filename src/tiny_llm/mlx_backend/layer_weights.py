"""What a checkpoint is to a model, and where it keeps a layer's weights. Given."""

from typing import Any, Protocol

import mlx.core as mx


class Checkpoint(Protocol):
    """What a model is built from: its sizes, and its weights by Hugging Face name."""

    config: Any  # fields named as in config.json

    def weight(self, name: str, *shape: int) -> mx.array:
        """The array of that name, on the device already. CheckpointError: it is absent or has another shape."""


def layer_weights(checkpoint: Checkpoint, index: int) -> dict[str, mx.array]:
    """The weights of layer `index`, under the names that `Qwen3TransformerBlock` gives them."""
    config = checkpoint.config
    E, F = config.hidden_size, config.intermediate_size
    Hq, Hkv, D = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    places = {
        "w_input_layernorm": ("input_layernorm", E),
        "wq": ("self_attn.q_proj", Hq * D, E),
        "wk": ("self_attn.k_proj", Hkv * D, E),
        "wv": ("self_attn.v_proj", Hkv * D, E),
        "q_norm": ("self_attn.q_norm", D),
        "k_norm": ("self_attn.k_norm", D),
        "wo": ("self_attn.o_proj", E, Hq * D),
        "w_post_attention_layernorm": ("post_attention_layernorm", E),
        "w_gate": ("mlp.gate_proj", F, E),
        "w_up": ("mlp.up_proj", F, E),
        "w_down": ("mlp.down_proj", E, F),
    }
    return {
        ours: checkpoint.weight(f"model.layers.{index}.{theirs}.weight", *shape)
        for ours, (theirs, *shape) in places.items()
    }
