"""Named sets of kernels: the course's own operations or the device's. Given."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch

from . import hpu
from .attention import scaled_dot_product_attention_grouped
from .basics import linear
from .flash_attention import Statistics, flash_attention_device, flash_attention_tiled
from .paged_attention import paged_decode_statistics
from .rms_norm import RMSNorm
from .rope import RoPE


@dataclass(frozen=True)
class Kernels:
    """Attention, the norm, RoPE and paged decode. All sets compute the same and differ in speed and memory.

    Args:
        attend: (query (B, H, L, D), key and value (B, Hkv, S, D), mask=…) -> (B, H, L, D).
        norm: a class with `RMSNorm`'s arguments.
        rope: makes a RoPE; takes the arguments of `RoPE`.
        paged_decode: takes the arguments of `paged_decode_statistics`, and returns the same up to the choice of m.
    """

    attend: Callable[..., torch.Tensor] = scaled_dot_product_attention_grouped
    norm: type[RMSNorm] = RMSNorm
    rope: Callable[..., RoPE] = RoPE
    paged_decode: Callable = paged_decode_statistics


class _DeviceNorm(RMSNorm):
    """RMSNorm as one kernel: Gaudi's on an HPU, torch's elsewhere."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return hpu.rms_norm(x, self.weight, self.eps)


class _DeviceRoPE(RoPE):
    """RoPE as one kernel on a Gaudi, which needs the rows of its tables twice, for both halves of a head."""

    def rows(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return tuple(torch.cat([rows, rows], dim=-1) for rows in super().rows(positions))

    def rotate(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        return hpu.apply_rope(x, cos, sin)


def _device_rope(dims: int, seq_len: int, base: float = 10000, traditional: bool = False) -> RoPE:
    """The device's RoPE rotates pairs (i, i + D/2), as in Qwen3; traditional pairs use Day 1.2's `RoPE`."""
    return (RoPE if traditional else _DeviceRoPE)(dims, seq_len, base, traditional)


def _paged_decode_device(
    query: torch.Tensor,
    key_pages: torch.Tensor,
    value_pages: torch.Tensor,
    block_list: torch.Tensor,
    block_groups: torch.Tensor,
    mask: torch.Tensor,
    scale: float | None = None,
) -> Statistics:
    """Day 3.2's decode; on a CPU one kernel per request, over exactly the tokens that it reads.

    A CPU has no use for fixed shapes and waits for nobody when it reads a number, so nothing has to be masked.
    """
    if query.device.type != "cpu":
        return paged_decode_statistics(query, key_pages, value_pages, block_list, block_groups, mask, scale)
    B, H, D = query.shape
    seen = mask > -torch.inf
    counts = torch.zeros(B + 1, dtype=torch.long).index_add_(0, block_groups, seen.sum(dim=1)).tolist()
    page_size, Hkv = key_pages.shape[1:3]
    slots = (block_list[:, None] * page_size + torch.arange(page_size))[seen]
    keys, values = (pages.flatten(0, 1).index_select(0, slots) for pages in (key_pages, value_pages))
    o, m = query.new_zeros(B, H, D), torch.full((B, H), -torch.inf)
    for row, (key, value) in enumerate(zip(keys.split(counts), values.split(counts), strict=True)):
        if len(key) and row < B:
            # The heads of a group are queries of one head: its keys are read once.
            key, value = (part.transpose(0, 1)[None] for part in (key, value))
            out, logsumexp = hpu.attention_with_logsumexp(query[row].view(1, Hkv, -1, D), key, value, scale)
            o[row], m[row] = out.reshape(H, D), logsumexp.reshape(H)
    return o.float(), m, (m > -torch.inf).float()


KERNELS = {
    "simple": Kernels(),
    "tiled": Kernels(attend=flash_attention_tiled),
    "device": Kernels(flash_attention_device, _DeviceNorm, _device_rope, _paged_decode_device),
}


def choose_kernels(attention: str) -> Kernels:
    """The set of kernels called `attention`.

    Raises:
        ValueError: no set has this name.
    """
    if attention not in KERNELS:
        raise ValueError(f"attention {attention!r} is unknown: choose {', '.join(KERNELS)}")
    return KERNELS[attention]


def dense_linear(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Day 1.1's `linear`, in float32 on a CPU that is slow in bf16: (..., I), (O, I), (O,) or None to (..., O)."""
    if w.dtype == torch.bfloat16 and w.device.type == "cpu" and _wants_float32(x):
        return _linear_in_float32(x, w, bias)
    return linear(x, w, bias)


# On a CPU without bf16 units the time of a bf16 product grows in proportion to its rows. In float32 the weight must be
# converted, but further rows cost little: the two are equal at 4 to 10 rows, depending on the threads and the matrix.
FEW_ROWS = 8
TILE = 256  # rows of w that are converted to float32 at a time: they stay in the processor's cache until they are used


def _wants_float32(x: torch.Tensor) -> bool:
    return x.numel() // x.shape[-1] >= FEW_ROWS and not _has_bf16_units()


@cache
def _has_bf16_units() -> bool:
    found = getattr(torch.cpu, "get_capabilities", dict)()  # older builds of torch do not have it
    return any(found.get(unit, False) for unit in ("avx512_bf16", "amx_bf16", "bf16"))


def _linear_in_float32(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """The product of bf16 numbers in float32, tile by tile: the whole weight never exists in float32."""
    wide = x.float()
    out = torch.cat([(wide @ tile.float().T).to(x.dtype) for tile in w.split(TILE)], dim=-1)
    return out if bias is None else out + bias
