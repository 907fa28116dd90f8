"""Matrices packed for the kernels of Day 4.1 as layers that multiply by them: what plain and quantised ones share."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeVar

from tiny_llm_engine.arrays.layers import Array, matrix_and_bias

Matrix = TypeVar("Matrix", bound="KernelMatrix")
LINE = 16  # outputs of a block


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

    @staticmethod
    @abstractmethod
    def _concatenated(arrays: list[Any]) -> Array:
        """The rows of several arrays as one array, computed now."""

    @classmethod
    def joined(cls: type[Matrix], matrices: Sequence[Matrix]) -> Matrix:
        """One matrix with the outputs of several, one after the other.

        Raises:
            ValueError: they differ in columns or types, or a number of outputs is not a multiple of 16.
        """
        first = matrices[0]
        for matrix in matrices:
            if matrix.kind != first.kind or matrix.shape[0] % LINE:
                raise ValueError(
                    f"{matrix} and {first} cannot be joined: they need the same columns, types, bits and groups, "
                    f"and a multiple of {LINE} outputs"
                )
        whole = {
            part: cls._concatenated([getattr(matrix, part) for matrix in matrices]) for part in cls.parts
        }
        outputs = sum(matrix.shape[0] for matrix in matrices)
        return replace(first, shape=(outputs, first.shape[1]), **whole)

    def __repr__(self) -> str:
        return f"{self.shape} {self.dtype}"

    @property
    def kind(self) -> tuple[Any, ...]:
        """What matrices that are joined have in common."""
        return self.shape[1], self.dtype

    @property
    def dtype(self) -> Any:
        """The type of its numbers."""
        return self.lines.dtype

    @property
    def nbytes(self) -> int:
        return sum(getattr(self, part).nbytes for part in self.parts)

    def rows(self, ids: Array) -> Array:
        """Some rows of the matrix: (...) integers to (..., I)."""
        lines = self.lines[ids // LINE, :, ids % LINE]
        return lines.flatten(-2)[..., : self.shape[1]]


def is_native(w: Any) -> bool:
    """Whether a linear layer multiplies by a kernel of Day 4.1."""
    return isinstance(matrix_and_bias(w)[0], KernelMatrix)
