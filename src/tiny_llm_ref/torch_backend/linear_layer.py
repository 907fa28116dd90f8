"""The linear layer of a weight, of whatever kind. Given."""

from typing import Any

import torch

from tiny_llm_given.layers import DenseLinear, Linear, with_bias

from .basics import linear


def linear_layer(weight: Any, bias: torch.Tensor | None = None) -> Linear:
    """An array (O, I) becomes a layer that multiplies by Day 1.1's `linear`; all other weights are layers already."""
    return with_bias(weight, bias) if callable(weight) else DenseLinear(weight, bias, linear)
