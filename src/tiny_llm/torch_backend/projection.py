"""One product for every kind of weight. Given."""

import torch

from .basics import linear
from .biased_weights import BiasedWeights


def project(
    x: torch.Tensor, w: torch.Tensor | BiasedWeights, bias: torch.Tensor | None = None
) -> torch.Tensor:
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
