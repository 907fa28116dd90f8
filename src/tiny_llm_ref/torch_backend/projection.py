"""A linear layer for every kind of weight. Given."""

import torch

from ..biased_weights import BiasedWeights
from ..groups import RowParallelWeights
from .products import dense_linear
from .quantized_weights import QuantizedWeights, quantized_linear
from .tensor_parallel import sum_over_ranks

Weights = torch.Tensor | QuantizedWeights | BiasedWeights | RowParallelWeights


def project(x: torch.Tensor, w: Weights, bias: torch.Tensor | None = None) -> torch.Tensor:
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
