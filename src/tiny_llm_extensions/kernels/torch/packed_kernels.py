"""Attention of packed batches by the device's own kernels, instead of Day 3.3's."""

from functools import partial
from typing import Any

from ...gaudi.hpu_attention import attend_fused, fused_mask
from ..packed_kernels import PackedKernels
from .cpu_attention import attend_packed, step_reads
from .solution import TorchSolution


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
        kernels.put_on(model)
