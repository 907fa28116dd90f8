"""One product for every kind of weight. Given."""

import mlx.core as mx

from .basics import linear
from .biased_weights import BiasedWeights


def project(x: mx.array, w: mx.array | BiasedWeights, bias: mx.array | None = None) -> mx.array:
    """`x @ w.T + bias`, computed the way that the weight's type asks for.

    Args:
        x: (..., I).
        w: (O, I); or with its bias.
        bias: (O,) or None.

    Returns:
        (..., O).
    """
    if isinstance(w, BiasedWeights):
        return project(x, w.weight, w.bias)
    return linear(x, w, bias)
