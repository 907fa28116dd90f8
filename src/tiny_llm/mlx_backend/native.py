"""The kernels of Day 4.1 with MLX's arrays on a CPU. Given.

A kernel reads numbers, so its arguments are computed before the call, and `mx.compile` cannot trace it. It writes into
an array of NumPy, which MLX copies: for the rows of a decode this takes 1 µs, and a new array of MLX would take 13.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx

from ..native import product
from ..native.arrays import NativeArray, empty, of_buffer, rows_of, shared
from ..native.threads import available_threads

NAMES = {mx.bfloat16: "bfloat16", mx.float32: "float32", mx.int64: "int64", mx.uint8: "uint8"}


def native_array(array: mx.array) -> NativeArray:
    """An array of MLX as a kernel sees it: computed, and its numbers follow each other in memory."""
    try:
        return of_buffer(array, NAMES[array.dtype])
    except ValueError:  # for example transposed
        return of_buffer(mx.contiguous(array), NAMES[array.dtype])


@dataclass(frozen=True, eq=False)
class NativeMatrix:
    """A matrix (O, I) in bf16 or float32, packed in lines.

    Args:
        lines: (O / 16, I / C, 16, C), see `product.pack`.
        shape: (O, I).
    """

    lines: mx.array
    shape: tuple[int, int]

    @classmethod
    def of(cls, w: mx.array) -> "NativeMatrix":
        """Packs a matrix on the CPU."""
        numbers = w.view(mx.uint16) if w.dtype == mx.bfloat16 else w
        return cls(mx.array(product.pack(shared(numbers))).view(w.dtype), (w.shape[0], w.shape[1]))

    @classmethod
    def joined(cls, matrices: Sequence["NativeMatrix"]) -> "NativeMatrix":
        """One matrix with the outputs of several, one after the other.

        Raises:
            ValueError: they differ in columns or type, or one has a number of outputs that is no multiple of 16.
        """
        first = matrices[0]
        for each in matrices:
            if (each.shape[1], each.dtype) != (first.shape[1], first.dtype) or each.shape[0] % product.LINE:
                raise ValueError(
                    f"{each.shape} {each.dtype} and {first.shape} {first.dtype} cannot be joined: they need the same "
                    f"columns and type, and a multiple of {product.LINE} outputs"
                )
        lines = mx.concatenate([each.lines for each in matrices])
        mx.eval(lines)
        return cls(lines, (sum(each.shape[0] for each in matrices), first.shape[1]))

    def outputs(self, start: int, stop: int) -> "NativeMatrix":
        """The matrix of some outputs, without a copy.

        Raises:
            ValueError: `start` or `stop` is not a multiple of 16, or there are no such outputs.
        """
        if start % product.LINE or stop % product.LINE or not 0 <= start < stop <= self.shape[0]:
            raise ValueError(
                f"outputs {start} to {stop} of {self.shape[0]}: give multiples of {product.LINE}"
            )
        lines = self.lines[start // product.LINE : stop // product.LINE]
        return NativeMatrix(lines, (stop - start, self.shape[1]))

    @property
    def dtype(self) -> mx.Dtype:
        return self.lines.dtype

    @property
    def nbytes(self) -> int:
        return self.lines.nbytes

    def rows(self, ids: mx.array) -> mx.array:
        """Some rows of the matrix: (...) integers to (..., I)."""
        lines = self.lines[ids // product.LINE, :, ids % product.LINE]
        return lines.flatten(-2)[..., : self.shape[1]]

    def __call__(self, x: mx.array, bias: mx.array | None = None) -> mx.array:
        """x @ Wᵀ + bias: (..., I) and (O,) or None to (..., O), in x's type."""
        rows = rows_of(native_array(x))  # `x.reshape` would take 20 µs
        y = empty((rows.shape[0], self.shape[0]), rows.dtype)
        of_bias = None if bias is None else native_array(bias.astype(mx.float32))
        product.multiply(rows, native_array(self.lines), of_bias, y, available_threads())
        return mx.array(y.owner).view(x.dtype).reshape(*x.shape[:-1], self.shape[0])


class PackedEmbedding:
    """`Embedding` for a table that is packed for products: rows are looked up in it, so there is no second copy.

    Args:
        weight: a packed (V, E) matrix.
    """

    def __init__(self, weight: NativeMatrix):
        self.weight = weight

    def __call__(self, ids: mx.array) -> mx.array:
        """See `Embedding`: (...) ids to (..., E) rows."""
        return self.weight.rows(ids)

    def as_linear(self, x: mx.array) -> mx.array:
        """See `Embedding`: (..., E) to (..., V) logits, in x's type."""
        return self.weight(x)
