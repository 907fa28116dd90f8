"""The matrices of a layer's experts: one array, or a matrix of each. Given."""

from collections.abc import Callable, Sequence
from typing import Any, TypeGuard

import torch

from .projection import Weights


class ExpertMatrices(tuple[Weights, ...]):
    """X matrices (O, I) of any kind that `project` takes."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """(X, O, I)."""
        first: Any = self[0]
        return len(self), *first.shape


Experts = (
    torch.Tensor | tuple[Weights, ...]
)  # (X, O, I), or X matrices (O, I) of any kind that `project` takes


def stack_experts(matrices: Sequence[Weights]) -> Experts:
    """The matrices of X experts as one: plain ones as an array (X, O, I), quantised ones side by side."""
    if all(isinstance(each, torch.Tensor) for each in matrices):
        return torch.stack([each for each in matrices if isinstance(each, torch.Tensor)])
    return ExpertMatrices(matrices)


def packed_experts(experts: Experts, pack: Callable[[torch.Tensor], Any]) -> Experts:
    """Plain experts in another layout, one by one; quantised ones have theirs already."""
    if isinstance(experts, torch.Tensor):
        return ExpertMatrices(pack(each) for each in experts)
    return experts


def reads_no_count(experts: Experts) -> TypeGuard[torch.Tensor]:
    """Whether torch multiplies rows by these matrices in one call: the host need not know how many rows each has."""
    return isinstance(experts, torch.Tensor) and experts.device.type == "cuda"
