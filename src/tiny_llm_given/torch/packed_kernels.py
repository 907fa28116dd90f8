"""Attention of packed batches by the device's own kernels, instead of Day 3.3's."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch

from ..windows import inner_layer
from .cpu_attention import attend_packed, step_reads
from .hpu_attention import attend_fused, fused_mask
from .solution import TorchSolution


class PackedKernels(NamedTuple):
    """Two functions that belong together: the second one gets what the first one returns.

    Args:
        mask: takes the arguments of Day 3.3's `packed_mask`.
        attend: takes the arguments of Day 3.3's `packed_attention`, and returns the same.
    """

    mask: Callable[..., Any]
    attend: Callable[..., torch.Tensor]


def kernels_of_device(solution: TorchSolution, device: str) -> PackedKernels | None:
    """On a Gaudi one kernel for a step; on a CPU a kernel per chunk, and one for similar decodes; elsewhere none."""
    if device == "cpu":
        return PackedKernels(step_reads, attend_packed)
    if device == "hpu":
        return PackedKernels(partial(fused_mask, solution), partial(attend_fused, solution))
    return None


def use_packed_kernels(solution: TorchSolution, model: Any) -> None:
    """Puts them on a model of Week 3; where its device has none, it keeps Day 3.3's."""
    kernels = kernels_of_device(solution, model.norm.weight.device.type)
    if kernels is not None:
        model.packed_mask = kernels.mask
        for layer in map(inner_layer, model.layers):
            layer.packed_attention = kernels.attend
