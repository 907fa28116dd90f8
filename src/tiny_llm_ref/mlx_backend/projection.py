"""One product for every kind of weight. Given."""

import mlx.core as mx

from ..biased_weights import BiasedWeights
from .kernels import dense_linear
from .quantized_weights import QuantizedWeights, quantized_linear

Weights = mx.array | QuantizedWeights | BiasedWeights


def project(x: mx.array, w: Weights, bias: mx.array | None = None) -> mx.array:
    """`x @ w.T + bias`, computed the way that the weight's type asks for.

    Args:
        x: (..., I).
        w: (O, I); quantised ones take `quantized_linear`, and one with a bias brings its own.
        bias: (O,) or None.

    Returns:
        (..., O).
    """
    if isinstance(w, BiasedWeights):
        return project(x, w.weight, w.bias)
    return quantized_linear(x, w, bias) if isinstance(w, QuantizedWeights) else dense_linear(x, w, bias)
