"""Named sets of kernels: the course's own operations or the device's. Given."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import cast

import torch

from ..serving.buckets.packed_inputs import PackedInputs
from . import hpu
from .attention import scaled_dot_product_attention_grouped
from .basics import linear
from .cpu_attention import StepReads, attend_decodes, attend_packed, step_reads
from .flash_attention import flash_attention_device, flash_attention_tiled
from .hpu_attention import FusedMask, attend_fused, fused_mask
from .packed_attention import PackedMask, packed_attention, packed_mask
from .rms_norm import RMSNorm
from .rope import RoPE

AnyMask = PackedMask | StepReads | FusedMask  # of a packed step; the second on a CPU, the third on a Gaudi


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


def dense_linear(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Day 1.1's `linear` by the fastest product of the device: (..., I), (O, I), (O,) or None to (..., O).

    On a CPU bf16 weights have products of their own: for one row if it has bf16 units, and in float32 if it has
    none. `w` may also be what `pack_weight` has made.
    """
    if isinstance(w, _PackedWeight):
        return torch.ops.tiny_llm.packed_linear(x, w.packed, bias)
    if w.dtype == torch.bfloat16 and w.device.type == "cpu":
        rows = x.numel() // x.shape[-1]
        if _has_bf16_units():
            return _linear_of_one_row(x, w, bias) if rows == 1 else linear(x, w, bias)
        return _linear_in_float32(x, w, bias) if rows >= FEW_ROWS else linear(x, w, bias)
    return linear(x, w, bias)


def _linear_of_one_row(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """A product for vectors: oneDNN's for matrices took 1.2 to 2 × as long for one row on a CPU with AMX."""
    out = torch.mv(w, x.reshape(-1)).view(*x.shape[:-1], -1)
    return out if bias is None else out + bias


@dataclass(frozen=True, eq=False)
class _PackedWeight:
    """A matrix (O, I) in oneDNN's layout: an array of torch whose memory only oneDNN can read."""

    packed: torch.Tensor


# Rows that the layout of packed weights is made for. Measured on a CPU with AMX: of 1, 4, 16 and 64 this was fastest
# over all numbers of rows.
PACKED_ROWS = 16


def pack_weight(w: torch.Tensor) -> torch.Tensor | _PackedWeight:
    """The matrix (O, I) in the layout of the device's products, for `dense_linear`; `w` itself where there is none.

    Only bf16 on a CPU with bf16 units has one: oneDNN's, which it would otherwise make again in every product.
    """
    if w.dtype != torch.bfloat16 or w.device.type != "cpu" or not _has_bf16_units():
        return w
    return _PackedWeight(torch.ops.mkldnn._reorder_linear_weight(w.contiguous(), PACKED_ROWS))


# An operator of our own: Inductor takes oneDNN's only with weights that are constants of a graph, and then each layer
# would need a separate graph.
_library = torch.library.Library("tiny_llm", "FRAGMENT")
if not hasattr(torch.ops.tiny_llm, "packed_linear"):
    _library.define("packed_linear(Tensor x, Tensor w, Tensor? bias) -> Tensor")

    @torch.library.impl(_library, "packed_linear", "CompositeExplicitAutograd")
    def _packed_linear(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return torch.ops.mkldnn._linear_pointwise(x, w, bias, "none", [], "")

    @torch.library.register_fake("tiny_llm::packed_linear", lib=_library)
    def _shape_of_packed_linear(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return x.new_empty(*x.shape[:-1], w.shape[0])


# On a CPU without bf16 units the time of a bf16 product grows in proportion to its rows. In float32 the weight must be
# converted, but further rows cost little: the two are equal at 4 to 10 rows, depending on the threads and the matrix.
FEW_ROWS = 8
TILE = 256  # rows of w that are converted to float32 at a time: they stay in the processor's cache until they are used


def _has_bf16_units() -> bool:
    return _find_bf16_units()


# To torch.compile a constant: what `torch.compiler.assume_constant_result` sets, which takes a second to import.
vars(_has_bf16_units)["_dynamo_marked_constant"] = True


@cache
def _find_bf16_units() -> bool:
    found = getattr(torch.cpu, "get_capabilities", dict)()  # older builds of torch do not have it
    return any(found.get(unit, False) for unit in ("avx512_bf16", "amx_bf16", "bf16"))


def _linear_in_float32(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """The product of bf16 numbers in float32, tile by tile: the whole weight never exists in float32."""
    wide = x.float()
    out = torch.cat([(wide @ tile.float().T).to(x.dtype) for tile in w.split(TILE)], dim=-1)
    return out if bias is None else out + bias
