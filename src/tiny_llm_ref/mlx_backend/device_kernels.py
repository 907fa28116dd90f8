"""The sets of kernels of Days 2.4 and 2.5: tiles, and the device's own kernels. Given."""

from collections.abc import Callable
from functools import partial
from typing import cast

import mlx.core as mx

from .basics import RMSNorm
from .flash_attention import flash_attention_device, flash_attention_tiled
from .kernels import KERNELS, Kernels
from .rope import RoPE


class _DeviceNorm(RMSNorm):
    """RMSNorm as one kernel of MLX."""

    def __call__(self, x: mx.array) -> mx.array:
        return mx.fast.rms_norm(x, self.weight, self.eps)


class _DeviceRoPE(RoPE):
    """Day 1.2's rotation on whole heads at once: fewer operations, which makes a decode step shorter."""

    def rows(self, positions: mx.array) -> tuple[mx.array, mx.array]:
        """The rows of both tables, (…, 1, D): repeated for both halves of a head, with an axis for the heads."""
        cos, sin = (mx.expand_dims(rows, -2) for rows in super().rows(positions))
        return mx.concatenate([cos, cos], axis=-1), mx.concatenate([-sin, sin], axis=-1)

    def rotate(self, x: mx.array, cos: mx.array, sin: mx.array) -> mx.array:
        a, b = mx.split(x, 2, axis=-1)
        return (x * cos + mx.concatenate([b, a], axis=-1) * sin).astype(x.dtype)


def _device_rope(dims: int, seq_len: int, base: float = 10000, traditional: bool = False) -> RoPE:
    """The device's RoPE rotates pairs (i, i + D/2), as in Qwen3; traditional pairs use Day 1.2's `RoPE`."""
    return (RoPE if traditional else _DeviceRoPE)(dims, seq_len, base, traditional)


KERNELS["tiled"] = Kernels(
    attend=cast(Callable[..., mx.array], flash_attention_tiled)
)  # no statistics are asked for
KERNELS["device"] = Kernels(
    partial(flash_attention_device, may_hide_all=False), norm=_DeviceNorm, rope=_device_rope
)
