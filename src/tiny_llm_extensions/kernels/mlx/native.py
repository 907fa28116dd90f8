"""The kernels of Day 4.1 with MLX's arrays on a CPU.

A kernel reads numbers, so its arguments are computed before the call, and `mx.compile` cannot trace it. It writes into
an array of NumPy, which MLX copies: for the rows of a decode this takes 1 µs, and a new array of MLX would take 13.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import mlx.core as mx

from ..kernel_matrix import KernelMatrix
from ..native.kernel import (
    NativeArray,
    PortArrays,
    ProductKernel,
    available_threads,
    empty,
    of_buffer,
    pack,
    rows_of,
    shared,
    threads_for,
)

TYPES = {"bfloat16": mx.bfloat16, "float32": mx.float32}
NAMES = {getattr(mx, name): name for name in ("bfloat16", "float16", "float32", "int64", "int8", "uint8")}


def native_array(array: mx.array) -> NativeArray:
    """An array of MLX as a kernel sees it: computed, and its numbers follow each other in memory."""
    try:
        return of_buffer(array, NAMES[array.dtype])
    except ValueError:  # for example transposed
        return of_buffer(mx.contiguous(array), NAMES[array.dtype])


def mlx_array(numbers: NativeArray) -> mx.array:
    """A copy of an array of NumPy that a kernel has written."""
    return mx.array(numbers.owner).view(TYPES[numbers.dtype])


def addresses_of(pool: Any) -> Sequence[int]:
    """Where the arrays of a pool are, computed. They are not kept: a write would copy one that is held elsewhere."""
    pool.materialize()
    return [native_array(part).address for part in pool.arrays]


ARRAYS = PortArrays(NAMES, native_array, mx.array, mlx_array, addresses_of, available_threads)


class NativeMatrix(KernelMatrix):
    """A matrix (O, I) in bf16 or float32; its kernel is a `ProductKernel`."""

    @classmethod
    def of(cls, w: mx.array, kernel: ProductKernel) -> "NativeMatrix":
        """Packs a matrix on the CPU."""
        numbers = w.view(mx.uint16) if w.dtype == mx.bfloat16 else w
        lines = mx.array(pack(shared(numbers))).view(w.dtype)
        return cls(lines, (w.shape[0], w.shape[1]), kernel)

    @cached_property
    def _array(self) -> NativeArray:
        """The lines as the kernel sees them."""
        return native_array(self.lines)

    def __call__(self, x: mx.array, bias: mx.array | None = None) -> mx.array:
        """x @ Wᵀ + bias: (..., I) and (O,) or None to (..., O), in x's type."""
        rows = rows_of(native_array(x))  # `x.reshape` would take 20 µs
        of_bias = None if bias is None else native_array(bias.astype(mx.float32))
        return mlx_array(self._multiply(rows, of_bias)).reshape(*x.shape[:-1], self.shape[0])

    def _multiply(self, rows: NativeArray, bias: NativeArray | None) -> NativeArray:
        """The same of rows (R, I) as a kernel sees them; the bias is float32."""
        y = empty((rows.shape[0], self.shape[0]), rows.dtype)
        self.kernel.multiply(rows, self._array, bias, y, threads_for(rows.shape[0] * self.nbytes))
        return y
