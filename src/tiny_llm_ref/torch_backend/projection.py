"""One product for every kind of weight. Given."""

import torch

from .basics import linear


def project(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """`x @ w.T + bias`, computed the way that the weight's type asks for.

    Args:
        x: (..., I).
        w: (O, I).
        bias: (O,) or None.

    Returns:
        (..., O).
    """
    return linear(x, w, bias)
