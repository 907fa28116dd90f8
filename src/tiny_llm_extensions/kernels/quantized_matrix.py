"""A matrix in 4 or 8 bits as a layer that multiplies by the kernel of Day 4.1: what both ports share."""

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import Any

from .kernel_matrix import KernelMatrix
from .native.quantized_product import PackedMatrix

SLICE_ROWS = 512  # rows that are packed at the same time: for a moment each number takes 3 bytes


@dataclass(frozen=True, eq=False, repr=False)
class QuantizedMatrix(KernelMatrix):
    """A matrix (O, I) in 4 or 8 bits, packed in lines. A product rounds x to integers, see `PackedMatrix.multiply`.

    Args:
        lines: (O / 16, I / C, 16, 4), uint8, see `quantized_product.pack`.
        shape: (O, I).
        kernel: a `QuantizedKernel`, of the solution in use.
        constants: (O / 16, I / group_size, 2, 16), bf16, float16 or float32, see `quantized_product.pack_constants`.
        group_size: numbers that share a scale and a bias: 32, 64 or 128.
        bits: 4 or 8.
        float_dtype: the type of the dequantised numbers; that of the constants when None.
        x_bits: 8 or 16: of the integers that x is rounded to.
    """

    parts = "lines", "constants"

    constants: Any
    group_size: int
    bits: int
    float_dtype: Any = None
    x_bits: int = 8
    _packed: PackedMatrix = field(init=False)  # made once: checks would take as long as a small product

    def __post_init__(self):
        object.__setattr__(self, "_packed", self._as_packed())

    @abstractmethod
    def _as_packed(self) -> PackedMatrix:
        """The matrix as the kernel takes it."""

    def __repr__(self) -> str:
        scales = f"groups of {self.group_size}, scales in {self.constants.dtype}"
        return f"{super().__repr__()} in {self.bits} bits, {scales}"

    def fields(self, bias: int | None) -> list[int]:
        """See `KernelMatrix`."""
        return self._packed.fields(bias)

    @property
    def dtype(self) -> Any:
        """The type of the dequantised numbers."""
        return self.constants.dtype if self.float_dtype is None else self.float_dtype
