"""Attention of packed batches: Day 3.3's, or the device's own. Given."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from .cpu_attention import attend_packed, step_reads
from .hpu_attention import attend_fused, fused_mask
from .packed_attention import packed_attention, packed_mask


@dataclass(frozen=True)
class PackedKernels:
    """Two functions that belong together: the second one gets what the first one returns.

    Args:
        mask: takes the arguments of Day 3.3's `packed_mask`.
        attend: takes the arguments of Day 3.3's `packed_attention`, and returns the same.
    """

    mask: Callable[..., Any] = packed_mask
    attend: Callable[..., torch.Tensor] = packed_attention


def choose_packed_kernels(attention: str, device: str) -> PackedKernels:
    """Day 3.3's; with "device" one kernel on a Gaudi, and on a CPU a kernel per chunk, and one for similar decodes.

    Args:
        attention: "simple", "tiled" or "device".
        device: the kind of the model's device.
    """
    fast = {"cpu": PackedKernels(step_reads, attend_packed), "hpu": PackedKernels(fused_mask, attend_fused)}
    return fast.get(device, PackedKernels()) if attention == "device" else PackedKernels()
