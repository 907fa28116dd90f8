"""A linear layer for every kind of weight. Given."""

import mlx.core as mx

from ..biased_weights import BiasedWeights
from .kernels import dense_linear
from .quantized_weights import QuantizedWeights, quantized_linear

Weights = mx.array | QuantizedWeights | BiasedWeights


def project(x: mx.array, w: Weights, bias: mx.array | None = None) -> mx.array:
    """`x @ w.T + bias` for a plain, a quantised or a biased weight.

    Args:
        x: (..., I).
        w: (O, I); quantised weights use `quantized_linear`, and `BiasedWeights` contain their own bias.
        bias: (O,) or None.

    Returns:
        (..., O).
    """
    if isinstance(w, BiasedWeights):
        return project(x, w.weight, w.bias)
    return quantized_linear(x, w, bias) if isinstance(w, QuantizedWeights) else dense_linear(x, w, bias)
