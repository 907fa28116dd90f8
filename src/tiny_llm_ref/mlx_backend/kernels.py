"""Named sets of kernels: the course's own operations or the device's. Given."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import cast

import mlx.core as mx

from ..serving.buckets.packed_inputs import PackedInputs
from .attention import scaled_dot_product_attention_grouped
from .cpu_attention import StepReads, attend_packed, step_reads
from .flash_attention import flash_attention_device, flash_attention_tiled
from .packed_attention import PackedMask, packed_attention, packed_mask
from .page_attention import PageReads, attend_in_pages
from .rms_norm import RMSNorm
from .rope import RoPE

AnyMask = PackedMask | StepReads | PageReads  # of a packed step; the second and the third on a CPU


@dataclass(frozen=True)
class Kernels:
    """Attention, the norm, RoPE and attention of packed batches. All sets compute the same.

    Args:
        attend: (query (B, H, L, D), key and value (B, Hkv, S, D), mask=…) -> (B, H, L, D). The mask shows each query
            at least its own key.
        norm: a class with `RMSNorm`'s arguments.
        rope: makes a RoPE; takes the arguments of `RoPE`.
        packed_mask: takes the arguments of Day 3.3's `packed_mask`; what it returns goes to `packed_attention`.
        packed_attention: takes the arguments of Day 3.3's `packed_attention`, and returns the same.
    """

    attend: Callable[..., mx.array] = scaled_dot_product_attention_grouped
    norm: type[RMSNorm] = RMSNorm
    rope: Callable[..., RoPE] = RoPE
    packed_mask: Callable[..., AnyMask] = packed_mask
    packed_attention: Callable[..., mx.array] = packed_attention


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


def _packed_mask_device(inputs: PackedInputs, page_size: int, window: int | None = None) -> AnyMask:
    """Day 3.3's masks; on a CPU, the slots that each request reads."""
    make = step_reads if mx.default_device() == mx.Device(mx.cpu) else packed_mask
    return make(inputs, page_size, window)


def _packed_attention_device(
    query: mx.array,
    key: mx.array,
    value: mx.array,
    key_pages: mx.array,
    value_pages: mx.array,
    mask: AnyMask,
    scale: float | None = None,
) -> mx.array:
    """Day 3.3's attention; on a CPU one kernel per chunk, and one for all decodes of similar length."""
    arrays = query, key, value, key_pages, value_pages
    if isinstance(mask, StepReads):
        return attend_packed(*arrays, mask, scale)
    if isinstance(mask, PageReads):
        return attend_in_pages(query, key_pages, value_pages, mask, scale)
    return packed_attention(*arrays, mask, scale)


KERNELS = {
    "simple": Kernels(),
    "tiled": Kernels(
        attend=cast(Callable[..., mx.array], flash_attention_tiled)
    ),  # no statistics are asked for
    "device": Kernels(
        partial(flash_attention_device, may_hide_all=False),
        _DeviceNorm,
        _device_rope,
        _packed_mask_device,
        _packed_attention_device,
    ),
}


def choose_kernels(attention: str) -> Kernels:
    """The set of kernels called `attention`.

    Raises:
        ValueError: no set has this name.
    """
    if attention not in KERNELS:
        raise ValueError(f"attention {attention!r} is unknown: choose {', '.join(KERNELS)}")
    return KERNELS[attention]
