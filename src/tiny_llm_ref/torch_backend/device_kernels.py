"""The sets of kernels of Days 2.4 and 2.5: tiles, and the device's own kernels. Given."""

from collections.abc import Callable
from functools import partial
from typing import Any, cast

import torch

from tiny_llm_engine.arrays.torch import fused

from .flash_attention import flash_attention_device, flash_attention_tiled
from .kernels import KERNELS, Kernels
from .rope import RoPE


class _DeviceRoPE(RoPE):
    """RoPE as one kernel on a Gaudi, which needs the rows of its tables twice, for both halves of a head."""

    def rows(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        cos, sin = (torch.cat([rows, rows], dim=-1) for rows in super().rows(positions))
        return cos, sin

    rotate: Any = staticmethod(fused.apply_rope)  # of tensors alone


def _device_rope(dims: int, seq_len: int, base: float = 10000, traditional: bool = False) -> RoPE:
    """The device's RoPE rotates pairs (i, i + D/2), as in Qwen3; traditional pairs use Day 1.2's `RoPE`."""
    return (RoPE if traditional else _DeviceRoPE)(dims, seq_len, base, traditional)


KERNELS["tiled"] = Kernels(
    attend=cast(Callable[..., torch.Tensor], flash_attention_tiled)
)  # no statistics are asked for
KERNELS["device"] = Kernels(
    partial(flash_attention_device, may_hide_all=False), norm=fused.DeviceNorm, rope=_device_rope
)
