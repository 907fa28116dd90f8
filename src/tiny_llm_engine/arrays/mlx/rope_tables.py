"""The RoPE of a model, plain or with scaled frequencies."""

from typing import Any

import mlx.core as mx

from ...models.layer_weights import ModelShape, RopeScaling


def rope_of(config: ModelShape, kernels: Any) -> Any:
    """The RoPE that all layers share, made by `kernels.rope`, with the frequencies of `config.rope_scaling`."""
    rope = kernels.rope(config.head_dim, config.context, config.rope_theta)
    if config.rope_scaling is not None:
        rope.cos, rope.sin = scaled_tables(config.rope_scaling, rope.seq_len)
    return rope


def scaled_tables(scaling: RopeScaling, seq_len: int) -> tuple[mx.array, mx.array]:
    """The cosines and sines of the angles, times the attention factor: each (seq_len, D/2) in float32.

    Both queries and keys are multiplied by the factor, so scores grow by its square.

    Args:
        scaling: has the angles of all positions, and `attention_factor`.
        seq_len: number of positions.
    """
    angles = mx.array(scaling.angles(seq_len))
    return mx.cos(angles) * scaling.attention_factor, mx.sin(angles) * scaling.attention_factor
