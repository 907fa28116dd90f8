"""Matrices packed for the kernels of Day 4.1 as layers that multiply by them: what plain and quantised ones share."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

from tiny_llm_engine.arrays.layers import Array, matrix_and_bias

LINE = 16  # outputs of a block
NO_MATRIX = [0] * 9  # a `Matrix` of `layers.cpp`


@dataclass(frozen=True, eq=False, repr=False)
class KernelMatrix(ABC):
    """A matrix (O, I) in lines; here of plain numbers, see `kernel.pack`.

    Args:
        lines: (O / 16, I / C, 16, C).
        shape: (O, I).
        kernel: the solution's kernel that multiplies by it.
    """

    parts: ClassVar[tuple[str, ...]] = ("lines",)  # its arrays

    lines: Any
    shape: tuple[int, int]
    kernel: Any

    @abstractmethod
    def __call__(self, x: Array, bias: Array | None = None) -> Array:
        """x @ Wᵀ + bias: (..., I) and (O,) or None to (..., O), in x's type."""

    def __repr__(self) -> str:
        return f"{self.shape} {self.dtype}"

    @property
    def dtype(self) -> Any:
        """The type of its numbers."""
        return self.lines.dtype

    @property
    def nbytes(self) -> int:
        return sum(getattr(self, part).nbytes for part in self.parts)

    def fields(self, bias: int | None) -> list[int]:
        """A `Matrix` of `layers.cpp`.

        Args:
            bias: the address of (O,), float32; or None.
        """
        return [self._array.address, 0, bias or 0, *self.shape, 0, 0, 0, 0]

    @property
    @abstractmethod
    def _array(self) -> Any:
        """The lines as the kernel sees them, a `NativeArray`."""

    def rows(self, ids: Array) -> Array:
        """Some rows of the matrix: (...) integers to (..., I)."""
        lines = self.lines[ids // LINE, :, ids % LINE]
        return lines.flatten(-2)[..., : self.shape[1]]


def is_native(w: Any) -> bool:
    """Whether a linear layer multiplies by a kernel of Day 4.1."""
    return isinstance(matrix_and_bias(w)[0], KernelMatrix)
