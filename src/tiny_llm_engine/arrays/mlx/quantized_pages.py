"""Pages in eight bits: how a pool keeps keys and values, and how attention reads them."""

from collections.abc import Callable
from dataclasses import dataclass

import mlx.core as mx

QuantizeRows = Callable[[mx.array], tuple[mx.array, mx.array]]  # Day 4.5's
LARGEST_FP8 = 448.0  # in e4m3


def to_fp8(x: mx.array) -> mx.array:
    """Numbers in e4m3, as bytes: what is too large becomes the largest number."""
    return mx.to_fp8(mx.clip(x, -LARGEST_FP8, LARGEST_FP8))


@dataclass(frozen=True)
class QuantizedPages:
    """Pages that are kept in eight bits, and read as if they held numbers of the model's type.

    They have what attention asks of an array of pages: its shape, and some of its pages.

    Args:
        codes: (..., Hkv, D), int8, or e4m3 as uint8.
        scales: (..., Hkv) bf16, of int8; None for e4m3.
        dtype: the float type of the numbers that are read.
    """

    codes: mx.array
    scales: mx.array | None
    dtype: mx.Dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return self.codes.shape

    @property
    def arrays(self) -> tuple[mx.array, ...]:
        """Codes, and scales if there are any."""
        return (self.codes,) if self.scales is None else (self.codes, self.scales)

    def __getitem__(self, index: mx.array) -> mx.array:
        """Some pages as numbers."""
        scales = None if self.scales is None else self.scales[index]
        return QuantizedPages(self.codes[index], scales, self.dtype).numbers()

    def rows(self, index: mx.array) -> mx.array:
        """(..., D): rows as numbers, of all slots and heads in their order."""
        scales = None if self.scales is None else self.scales.reshape(-1)[index]
        codes = mx.take(self.codes.reshape(-1, self.shape[-1]), index, axis=0)
        return QuantizedPages(codes, scales, self.dtype).numbers()

    def numbers(self) -> mx.array:
        """All of it, in the model's type."""
        if self.scales is None:
            return mx.from_fp8(self.codes, self.dtype)
        return (self.codes.astype(mx.float32) * self.scales.astype(mx.float32)[..., None]).astype(self.dtype)


def quantized(x: mx.array, quantize_rows: QuantizeRows | None, dtype: mx.Dtype) -> QuantizedPages:
    """Numbers (..., D) of this type in int8, by a solution's `quantize_rows`, or in e4m3 if that is None."""
    codes, scales = (to_fp8(x), None) if quantize_rows is None else quantize_rows(x)
    return QuantizedPages(codes, scales, dtype)
