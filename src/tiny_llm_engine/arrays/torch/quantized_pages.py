"""Pages in eight bits: how a pool keeps keys and values, and how attention reads them."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from . import hpu

QuantizeRows = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]  # Day 4.5's


def to_fp8(x: torch.Tensor) -> torch.Tensor:
    """Numbers in e4m3, as bytes: what is too large for the device becomes its largest number."""
    most = hpu.largest_fp8(x.device.type)
    return x.clamp(-most, most).to(torch.float8_e4m3fn).view(torch.uint8)


@dataclass(frozen=True)
class QuantizedPages:
    """Pages that are kept in eight bits, and read as if they held numbers of the model's type.

    They have what attention asks of an array of pages: its shape, and some of its pages or slots.

    Args:
        codes: (..., Hkv, D), int8, or e4m3 as uint8.
        scales: (..., Hkv) bf16, of int8; None for e4m3.
        dtype: the float type of the numbers that are read.
    """

    codes: torch.Tensor
    scales: torch.Tensor | None
    dtype: torch.dtype

    @property
    def shape(self) -> torch.Size:
        return self.codes.shape

    @property
    def device(self) -> torch.device:
        return self.codes.device

    @property
    def arrays(self) -> tuple[torch.Tensor, ...]:
        """Codes, and scales if there are any."""
        return (self.codes,) if self.scales is None else (self.codes, self.scales)

    def flatten(self, first: int, last: int) -> "QuantizedPages":
        """The same with some leading axes made one, as of a `Tensor`."""
        scales = None if self.scales is None else self.scales.flatten(first, last)
        return QuantizedPages(self.codes.flatten(first, last), scales, self.dtype)

    def index_select(self, dim: int, index: torch.Tensor) -> torch.Tensor:
        """Some pages, or slots after `flatten`, as numbers."""
        codes = self.codes.index_select(dim, index)
        scales = None if self.scales is None else self.scales.index_select(dim, index)
        return QuantizedPages(codes, scales, self.dtype).numbers()

    def __getitem__(self, index: torch.Tensor) -> torch.Tensor:
        return self.index_select(0, index.flatten()).unflatten(0, index.shape)

    def numbers(self) -> torch.Tensor:
        """All of it, in the model's type."""
        if self.scales is None:
            return self.codes.view(torch.float8_e4m3fn).to(self.dtype)
        return (self.codes.float() * self.scales.float().unsqueeze(-1)).to(self.dtype)


def quantized(x: torch.Tensor, quantize_rows: QuantizeRows | None, dtype: torch.dtype) -> QuantizedPages:
    """Numbers (..., D) of this type in int8, by a solution's `quantize_rows`, or in e4m3 if that is None."""
    codes, scales = (to_fp8(x), None) if quantize_rows is None else quantize_rows(x)
    return QuantizedPages(codes, scales, dtype)
