"""Pages in eight bits: how a pool keeps keys and values, and how attention reads them."""

from dataclasses import dataclass

import torch

from . import hpu

MOST = 127  # of int8; -128 is not used, so that a number and its opposite are kept alike


def quantize_rows(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows in int8: the largest number of each becomes 127 or -127.

    Args:
        x: (..., D).

    Returns:
        codes: (..., D) int8.
        scales: (...) bf16, so that codes · scales is nearly x. Codes are made for the rounded scale.
    """
    x = x.float()
    scales = (x.abs().amax(dim=-1) / MOST).bfloat16()
    by = torch.where(scales > 0, scales.float(), 1).unsqueeze(-1)  # of zeros alone the scale is 0
    return (x / by).round().clamp(-MOST, MOST).to(torch.int8), scales


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
        dtype: of what is read.
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


def quantized(x: torch.Tensor, is_int8: bool, dtype: torch.dtype) -> QuantizedPages:
    """Numbers (..., D) of this type in int8, or in e4m3."""
    codes, scales = quantize_rows(x) if is_int8 else (to_fp8(x), None)
    return QuantizedPages(codes, scales, dtype)
