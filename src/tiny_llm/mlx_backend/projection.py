"""A linear layer for every kind of weight. Given."""

import mlx.core as mx

from ..biased_weights import BiasedWeights
from ..groups import RowParallelWeights
from .products import dense_linear
from .quantized_weights import QuantizedWeights, quantized_linear
from .tensor_parallel import sum_over_ranks

Weights = mx.array | QuantizedWeights | BiasedWeights | RowParallelWeights


def project(x: mx.array, w: Weights, bias: mx.array | None = None) -> mx.array:
    """`x @ w.T + bias` for a plain, a quantised or a biased weight.

    Args:
        x: (..., I).
        w: (O, I); quantised weights use `quantized_linear`, and `BiasedWeights` contain their own bias.
            With `RowParallelWeights` the product is summed over the ranks.
        bias: (O,) or None.

    Returns:
        (..., O).
    """
    if isinstance(w, BiasedWeights):
        return project(x, w.weight, w.bias)
    if isinstance(w, RowParallelWeights):
        return sum_over_ranks(project(x, w.weight), w.group, bias)
    return quantized_linear(x, w, bias) if isinstance(w, QuantizedWeights) else dense_linear(x, w, bias)
