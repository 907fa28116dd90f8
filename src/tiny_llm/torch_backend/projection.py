"""One product for every kind of weight. Given."""

import torch

from .basics import linear
from .quantized_linear import QuantizedWeights, quantized_linear


def project(
    x: torch.Tensor, w: torch.Tensor | QuantizedWeights, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """`x @ w.T + bias`, computed the way that the weight's type asks for.

    Args:
        x: (..., I).
        w: (O, I); packed ones take `quantized_linear`.
        bias: (O,) or None.

    Returns:
        (..., O).
    """
    return quantized_linear(x, w, bias) if isinstance(w, QuantizedWeights) else linear(x, w, bias)
