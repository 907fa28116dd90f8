"""The RoPE of a model: the plain one, or with tables of other frequencies. Given."""

from typing import Any

import torch

from .kernels import Kernels
from .rope import RoPE


def rope_of(config: Any, kernels: Kernels) -> RoPE:
    """One RoPE for all layers, as `config.rope_scaling` wants it."""
    rope = kernels.rope(config.head_dim, config.max_position_embeddings, config.rope_theta)
    if config.rope_scaling is not None:
        rope.cos, rope.sin = scaled_tables(config.rope_scaling, rope.seq_len)
    return rope


def scaled_tables(scaling: Any, seq_len: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The cosines and sines of position · frequency, times the attention factor: each (seq_len, D/2) in float32.

    Queries and keys both turn by these tables, so that scores grow by the square of the factor.

    Args:
        scaling: has `frequencies`, D/2 angles a position, and `attention_factor`.
        seq_len: number of positions.
    """
    frequencies = torch.tensor(scaling.frequencies, dtype=torch.float32)
    angles = torch.arange(seq_len, dtype=torch.float32)[:, None] * frequencies
    return torch.cos(angles) * scaling.attention_factor, torch.sin(angles) * scaling.attention_factor
