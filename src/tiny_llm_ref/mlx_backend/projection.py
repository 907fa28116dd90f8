"""One product for every kind of weight. Given."""

import mlx.core as mx

from .basics import linear


def project(x: mx.array, w: mx.array, bias: mx.array | None = None) -> mx.array:
    """`x @ w.T + bias`, computed the way that the weight's type asks for.

    Args:
        x: (..., I).
        w: (O, I).
        bias: (O,) or None.

    Returns:
        (..., O).
    """
    return linear(x, w, bias)
