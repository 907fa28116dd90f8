"""The operations that a device has its own ways for, under one name for each way to compute them. Given."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch

from . import hpu
from .attention import scaled_dot_product_attention_grouped
from .basics import linear
from .flash_attention import flash_attention_device, flash_attention_tiled
from .rms_norm import RMSNorm
from .rope import RoPE


@dataclass(frozen=True)
class Kernels:
    """Attention, the norm and RoPE, which do the same in every set and differ in speed and memory.

    Args:
        attend: (query (B, H, L, D), key and value (B, Hkv, S, D), mask=…) -> (B, H, L, D).
        norm: a class with `RMSNorm`'s arguments.
        rope: makes a RoPE from the arguments of `RoPE`.
    """

    attend: Callable[..., torch.Tensor] = scaled_dot_product_attention_grouped
    norm: type[RMSNorm] = RMSNorm
    rope: Callable[..., RoPE] = RoPE


class _DeviceNorm(RMSNorm):
    """The norm in one program: Gaudi's, elsewhere torch's."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return hpu.rms_norm(x, self.weight, self.eps)


class _DeviceRoPE(RoPE):
    """RoPE in one program on a Gaudi, which wants the rows of its tables twice, for both halves of a head."""

    def rows(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return tuple(torch.cat([rows, rows], dim=-1) for rows in super().rows(positions))

    def rotate(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        return hpu.apply_rope(x, cos, sin)


def _device_rope(dims: int, seq_len: int, base: float = 10000, traditional: bool = False) -> RoPE:
    """The device's rotation turns halves, as Qwen3 has them. Traditional pairs stay with Day 1.2's."""
    return (RoPE if traditional else _DeviceRoPE)(dims, seq_len, base, traditional)


KERNELS = {
    "simple": Kernels(),
    "tiled": Kernels(attend=flash_attention_tiled),
    "device": Kernels(attend=flash_attention_device, norm=_DeviceNorm, rope=_device_rope),
}


def choose_kernels(attention: str) -> Kernels:
    """The set called `attention`.

    Raises:
        ValueError: there is none of that name.
    """
    if attention not in KERNELS:
        raise ValueError(f"attention {attention!r} is unknown: choose {', '.join(KERNELS)}")
    return KERNELS[attention]


def dense_linear(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Day 1.1's `linear`, in float32 where a CPU is slow in bf16: (..., I), (O, I), (O,) or None to (..., O)."""
    if w.dtype == torch.bfloat16 and w.device.type == "cpu" and _wants_float32(x):
        return _linear_in_float32(x, w, bias)
    return linear(x, w, bias)


# A CPU without units for bf16 multiplies one row of it well, and each further row takes as long again. In float32 the
# price is the conversion, and further rows cost little: between 4 and 10 rows they meet, by threads and by matrix.
FEW_ROWS = 8
TILE = 256  # rows of w that become float32 at a time: they stay in the processor's cache until they are used


def _wants_float32(x: torch.Tensor) -> bool:
    return x.numel() // x.shape[-1] >= FEW_ROWS and not _has_bf16_units()


@cache
def _has_bf16_units() -> bool:
    found = getattr(torch.cpu, "get_capabilities", dict)()  # older builds of torch do not say
    return any(found.get(unit, False) for unit in ("avx512_bf16", "amx_bf16", "bf16"))


def _linear_in_float32(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """The product of bf16 numbers in float32, tile by tile: the weight is never there in float32 as a whole."""
    wide = x.float()
    out = torch.cat([(wide @ tile.float().T).to(x.dtype) for tile in w.split(TILE)], dim=-1)
    return out if bias is None else out + bias
