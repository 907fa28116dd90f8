"""Functions that every layer uses: softmax, linear and SiLU."""

import mlx.core as mx


def softmax(x: mx.array, axis: int) -> mx.array:
    """Softmax: turns scores into non-negative weights that sum to 1 along `axis`.

    Args:
        x: scores of any shape; -inf means weight 0.
        axis: the axis to normalise over; a negative one counts from the end.

    Returns:
        Weights, same shape and type as `x`. Finite for scores of any size.
    """
    # TASK 1.1.1: exp(x) / sum(exp(x)) along the axis.
    # Scores of 1e4 must not overflow: subtract the largest score first, which does not change the weights.
    exps = mx.exp(x - mx.max(x, axis=axis, keepdims=True))
    return exps / mx.sum(exps, axis=axis, keepdims=True)


def linear(x: mx.array, w: mx.array, bias: mx.array | None = None) -> mx.array:
    """A linear layer: `x @ w.T + bias`.

    Args:
        x: (..., I) inputs.
        w: (O, I) weights, one row per output, as checkpoints store them.
        bias: (O,) or None.

    Returns:
        (..., O).
    """
    # TASK 1.1.2: each row of w gives one output.
    out = x @ w.T
    return out if bias is None else out + bias


def silu(x: mx.array) -> mx.array:
    """x · sigmoid(x), the gate of Qwen3's MLP (Elfwing et al., 2017; also called swish).

    Args:
        x: any shape and floating-point type.

    Returns:
        Same shape and type as `x`: near 0 for very negative x, near x for large x; finite for every finite x.
    """
    # TASK 1.4.2: multiply every number by its sigmoid, 1 / (1 + exp(-x)).
    # A formula written with exp can overflow at ±1e4, and ∞/∞ is NaN.
    return x * mx.sigmoid(x)
