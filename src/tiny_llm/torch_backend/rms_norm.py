"""RMSNorm: scales every token's vector to a root mean square of 1, then each dimension by a weight."""

import torch


class RMSNorm:
    """x / √(mean(x²) + eps) · weight over the last axis (Zhang and Sennrich, 2019).

    Args:
        dim: E, the size of the last axis.
        weight: (E,), one factor per dimension, in the type of the inputs.
        eps: added to the mean square before the root, so that a vector of zeros gives zeros.

    Raises:
        ValueError: the weight's shape is not (E,).
    """

    def __init__(self, dim: int, weight: torch.Tensor, eps: float = 1e-5):
        if tuple(weight.shape) != (dim,):
            raise ValueError(f"the norm's weight has shape {tuple(weight.shape)}, dim {dim} needs ({dim},)")
        self.dim, self.weight, self.eps = dim, weight, eps

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """
        Args:
            x: (..., E) in any floating-point type.

        Returns:
            (..., E) in x's type; the mean square and the division are computed in float32.
        """
        # TASK 1.4.1: take the mean square in float32, divide by its root, cast back to x's type, apply the weight.
        # With bf16's 8 bits of precision a long sum stops growing, and in float16 the square of 256 is infinite.
        raise NotImplementedError("week 1 day 4 task 1: RMSNorm.__call__")
