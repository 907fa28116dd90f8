"""The matrices of a layer's experts: one array, or a linear layer of each."""

from typing import TypeGuard

import torch

from ..layers import ExpertMatrices

Experts = torch.Tensor | ExpertMatrices  # an array (X, O, I) where one call multiplies by all of them


def reads_no_count(experts: Experts) -> TypeGuard[torch.Tensor]:
    """Whether torch multiplies rows by these matrices in one call: the host need not know how many rows each has.

    It does so on CUDA, where a row of a matrix has a multiple of 16 bytes.
    """
    return (
        isinstance(experts, torch.Tensor)
        and experts.device.type == "cuda"
        and experts.shape[-1] * experts.element_size() % 16 == 0
    )
