"""Attention of packed batches: Day 3.3's, or the device's own. Given."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from .cpu_attention import attend_packed, step_reads
from .packed_attention import packed_attention, packed_mask


@dataclass(frozen=True)
class PackedKernels:
    """Two functions that belong together: the second one gets what the first one returns.

    Args:
        mask: takes the arguments of Day 3.3's `packed_mask`.
        attend: takes the arguments of Day 3.3's `packed_attention`, and returns the same.
    """

    mask: Callable[..., Any] = packed_mask
    attend: Callable[..., mx.array] = packed_attention


def choose_packed_kernels(attention: str, device: str) -> PackedKernels:
    """Day 3.3's; with "device" on a CPU a kernel per chunk, and one for similar decodes.

    Args:
        attention: "simple", "tiled" or "device".
        device: the kind of the model's device.
    """
    is_fast = attention == "device" and device == "cpu"
    return PackedKernels(step_reads, attend_packed) if is_fast else PackedKernels()
