"""Attention of packed batches by the device's own kernels, instead of Day 3.3's."""

from functools import partial
from typing import Any

from ...gaudi.hpu_attention import attend_fused, fused_mask
from ...nvidia.joined_layer import join_products
from ...nvidia.varlen_attention import attend_texts, text_mask, why_no_kernel
from ..packed_kernels import PackedKernels
from .cpu_attention import attend_packed, step_reads
from .solution import TorchSolution


def kernels_of_device(solution: TorchSolution, device: str) -> PackedKernels | None:
    """On a Gaudi and on CUDA one kernel for a step; on a CPU one for each chunk, and for similar decodes."""
    if device == "cpu":
        return PackedKernels(step_reads, attend_packed)
    if device == "hpu":
        return PackedKernels(partial(fused_mask, solution), partial(attend_fused, solution))
    if device == "cuda":
        return PackedKernels(partial(text_mask, solution), partial(attend_texts, solution))
    return None


def why_no_texts(model: Any) -> str | None:
    """Why a model on CUDA does not attend by block tables, in words; None if it does."""
    is_other = getattr(model.packed_mask, "func", None) is not text_mask
    return why_no_kernel(model) or ("another attention was asked for" if is_other else None)


def use_packed_kernels(solution: TorchSolution, model: Any) -> None:
    """Puts them on a model of Week 3; where its device has none, it keeps Day 3.3's."""
    device = model.norm.weight.device.type
    if device == "cuda":
        join_products(model)
        if why_no_kernel(model) is not None:
            return
    kernels = kernels_of_device(solution, device)
    if kernels is not None:
        kernels.put_on(model)
