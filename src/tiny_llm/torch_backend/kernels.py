"""Named sets of kernels: the course's own operations or the device's. Given."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import cast

import torch

from ..serving.buckets.packed_inputs import PackedInputs
from . import hpu
from .attention import scaled_dot_product_attention_grouped
from .cpu_attention import StepReads, attend_decodes, attend_packed, step_reads
from .flash_attention import flash_attention_device, flash_attention_tiled
from .hpu_attention import FusedMask, attend_fused, fused_mask
from .packed_attention import PackedMask, packed_attention, packed_mask
from .page_attention import PageReads, attend_in_pages
from .rms_norm import RMSNorm
from .rope import RoPE

# Of a packed step: the second and the third on a CPU, the last on a Gaudi.
AnyMask = PackedMask | StepReads | PageReads | FusedMask


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

    attend: Callable[..., torch.Tensor] = scaled_dot_product_attention_grouped
    norm: type[RMSNorm] = RMSNorm
    rope: Callable[..., RoPE] = RoPE
    packed_mask: Callable[..., AnyMask] = packed_mask
    packed_attention: Callable[..., torch.Tensor] = packed_attention


class _DeviceNorm(RMSNorm):
    """RMSNorm as one kernel: Gaudi's on an HPU, torch's elsewhere."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return hpu.rms_norm(x, self.weight, self.eps)


class _DeviceRoPE(RoPE):
    """RoPE as one kernel on a Gaudi, which needs the rows of its tables twice, for both halves of a head."""

    def rows(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        cos, sin = (torch.cat([rows, rows], dim=-1) for rows in super().rows(positions))
        return cos, sin

    def rotate(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        return hpu.apply_rope(x, cos, sin)


def _device_rope(dims: int, seq_len: int, base: float = 10000, traditional: bool = False) -> RoPE:
    """The device's RoPE rotates pairs (i, i + D/2), as in Qwen3; traditional pairs use Day 1.2's `RoPE`."""
    return (RoPE if traditional else _DeviceRoPE)(dims, seq_len, base, traditional)


def _packed_mask_device(inputs: PackedInputs, page_size: int, window: int | None = None) -> AnyMask:
    """Day 3.3's masks; on a CPU, the slots that each request reads; on a Gaudi, one mask for its kernel."""
    makers: dict[str, Callable[..., AnyMask]] = {"cpu": step_reads, "hpu": fused_mask}
    return makers.get(inputs.segments.device.type, packed_mask)(inputs, page_size, window)


def _packed_attention_device(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    key_pages: torch.Tensor,
    value_pages: torch.Tensor,
    mask: AnyMask,
    scale: float | None = None,
    decodes: Callable[..., torch.Tensor] = attend_decodes,
) -> torch.Tensor:
    """Day 3.3's attention; on a CPU a kernel per chunk, and `decodes` for decodes of similar length; one on a Gaudi."""
    arrays = query, key, value, key_pages, value_pages
    if isinstance(mask, StepReads):
        return attend_packed(*arrays, mask, scale, decodes)
    if isinstance(mask, PageReads):
        return attend_in_pages(*arrays, mask, scale)
    if isinstance(mask, FusedMask):
        return attend_fused(*arrays, mask, scale)
    return packed_attention(*arrays, mask, scale)


KERNELS = {
    "simple": Kernels(),
    "tiled": Kernels(
        attend=cast(Callable[..., torch.Tensor], flash_attention_tiled)
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
