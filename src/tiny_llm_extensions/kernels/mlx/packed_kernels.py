"""Attention of packed batches by the device's own kernels, instead of Day 3.3's."""

from functools import partial
from typing import Any

import mlx.core as mx

from ..packed_kernels import PackedKernels
from .cpu_attention import attend_packed, step_reads
from .solution import MlxSolution


def kernels_of_device(solution: MlxSolution, device: str) -> PackedKernels | None:
    """On a CPU a kernel per chunk, and one for similar decodes; on a GPU none."""
    if device != "cpu":
        return None
    return PackedKernels(step_reads, partial(attend_packed, fused_attention=solution.fused_attention))


def use_packed_kernels(solution: MlxSolution, model: Any) -> None:
    """Puts them on a model of Week 3; where its device has none, it keeps Day 3.3's."""
    kernels = kernels_of_device(solution, "cpu" if mx.default_device() == mx.Device(mx.cpu) else "gpu")
    if kernels is not None:
        kernels.put_on(model)
