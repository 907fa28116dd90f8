"""A matrix in 4 or 8 bits as a layer that multiplies by the kernel of Day 4.1: what both ports share."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from .layers import Array
from .native.quantized_product import LINE, PackedMatrix, QuantizedKernel

Matrix = TypeVar("Matrix", bound="QuantizedMatrix")
SLICE_ROWS = 512  # rows that are packed at the same time: for a moment each number takes 3 bytes


@dataclass(frozen=True, eq=False, repr=False)
class QuantizedMatrix(ABC):
    """A matrix (O, I) in 4 or 8 bits, packed in lines. A product rounds x to integers, see `PackedMatrix.multiply`.

    Args:
        lines: (O / 16, I / C, 16, 4), uint8, see `quantized_product.pack`.
        constants: (O / 16, I / group_size, 2, 16), bf16, float16 or float32, see `quantized_product.pack_constants`.
        shape: (O, I).
        group_size: numbers that share a scale and a bias: 32, 64 or 128.
        bits: 4 or 8.
        kernel: of the solution in use.
        float_dtype: the type of the dequantised numbers; that of the constants when None.
        x_bits: 8 or 16: of the integers that x is rounded to.
    """

    lines: Any
    constants: Any
    shape: tuple[int, int]
    group_size: int
    bits: int
    kernel: QuantizedKernel
    float_dtype: Any = None
    x_bits: int = 8
    _packed: PackedMatrix = field(init=False)  # made once: checks would take as long as a small product

    def __post_init__(self):
        object.__setattr__(self, "_packed", self._as_packed())

    @abstractmethod
    def _as_packed(self) -> PackedMatrix:
        """The matrix as the kernel takes it."""

    @staticmethod
    @abstractmethod
    def _concatenated(arrays: list[Any]) -> Array:
        """The rows of several arrays as one array, computed now."""

    @classmethod
    def joined(cls: type[Matrix], matrices: Sequence[Matrix]) -> Matrix:
        """One matrix with the outputs of several, one after the other.

        Raises:
            ValueError: they differ in columns, groups, bits or types, or a number of outputs is not a
                multiple of 16.
        """
        first = matrices[0]
        for matrix in matrices:
            if matrix.kind != first.kind or matrix.shape[0] % LINE:
                raise ValueError(
                    f"{matrix} and {first} cannot be joined: they need the same columns, groups, bits and types, and a "
                    f"multiple of {LINE} outputs"
                )
        lines, constants = (
            cls._concatenated([getattr(matrix, part) for matrix in matrices])
            for part in ("lines", "constants")
        )
        shape = sum(matrix.shape[0] for matrix in matrices), first.shape[1]
        kind = first.group_size, first.bits, first.kernel, first.float_dtype, first.x_bits
        return cls(lines, constants, shape, *kind)

    def __repr__(self) -> str:
        O, I = self.shape
        scales = f"groups of {self.group_size}, scales in {self.constants.dtype}"
        return f"({O}, {I}) {self.dtype} in {self.bits} bits, {scales}"

    @property
    def kind(self) -> tuple[Any, ...]:
        """What matrices that are joined have in common."""
        return self.shape[1], self.group_size, self.bits, self.constants.dtype, self.dtype, self.x_bits

    @property
    def dtype(self) -> Any:
        """The type of the dequantised numbers."""
        return self.constants.dtype if self.float_dtype is None else self.float_dtype

    @property
    def nbytes(self) -> int:
        return self.lines.nbytes + self.constants.nbytes
