"""The matrices of a layer's experts: one array, or a linear layer of each. Given."""

from collections.abc import Callable, Sequence
from typing import Any, TypeGuard

import torch

from .linear_layer import Linear, linear_layer


class ExpertMatrices(tuple[Linear, ...]):
    """The linear layers (O, I) of X experts."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """(X, O, I)."""
        first: Any = self[0]
        return len(self), *first.shape


Experts = torch.Tensor | ExpertMatrices  # an array (X, O, I) where one call multiplies by all of them


def experts_of(weights: Any) -> Experts:
    """The experts from an array (X, O, I) or from X matrices (O, I) as `linear_layer` takes them.

    An array stays one where torch multiplies by it in one call.
    """
    if isinstance(weights, torch.Tensor) and weights.device.type == "cuda":
        return weights
    return ExpertMatrices(map(linear_layer, weights))


def stack_experts(matrices: Sequence[Any]) -> Experts:
    """Quantised matrices of X experts as one weight."""
    return ExpertMatrices(map(linear_layer, matrices))


def packed_experts(experts: Experts, make: Callable[[Linear], Linear]) -> Experts:
    """The experts with each layer replaced by what `make` makes of it."""
    return ExpertMatrices(make(linear_layer(each)) for each in experts)


def reads_no_count(experts: Experts) -> TypeGuard[torch.Tensor]:
    """Whether torch multiplies rows by these matrices in one call: the host need not know how many rows each has."""
    return isinstance(experts, torch.Tensor) and experts.device.type == "cuda"
