"""The kernels of Day 4.1 with MLX's arrays on a CPU.

A kernel reads numbers, so its arguments are computed before the call, and `mx.compile` cannot trace it. It writes into
an array of NumPy, which MLX copies: for the rows of a decode this takes 1 µs, and a new array of MLX would take 13.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import mlx.core as mx

from ..native.attention import KeptArray
from ..native.kernel import (
    LINE,
    NativeArray,
    ProductKernel,
    empty,
    of_buffer,
    pack,
    rows_of,
    shared,
    threads_for,
)
from ..native.page_reads import DecodeRuns
from .quantized_pages import QuantizedPages

TYPES = {"bfloat16": mx.bfloat16, "float32": mx.float32}
NAMES = {getattr(mx, name): name for name in ("bfloat16", "float16", "float32", "int64", "int8", "uint8")}


def native_array(array: mx.array) -> NativeArray:
    """An array of MLX as a kernel sees it: computed, and its numbers follow each other in memory."""
    try:
        return of_buffer(array, NAMES[array.dtype])
    except ValueError:  # for example transposed
        return of_buffer(mx.contiguous(array), NAMES[array.dtype])


def mlx_array(rows: NativeArray, *shape: int) -> mx.array:
    """A copy of rows (R, O) that a kernel has written: an array (..., O)."""
    return mx.array(rows.owner.reshape(*shape, rows.shape[1])).view(TYPES[rows.dtype])


@dataclass(frozen=True, eq=False)
class NativeMatrix:
    """A matrix (O, I) in bf16 or float32, packed in lines.

    Args:
        lines: (O / 16, I / C, 16, C), see `kernel.pack`.
        shape: (O, I).
        kernel: of the solution in use.
    """

    lines: mx.array
    shape: tuple[int, int]
    kernel: ProductKernel

    @classmethod
    def of(cls, w: mx.array, kernel: ProductKernel) -> "NativeMatrix":
        """Packs a matrix on the CPU."""
        numbers = w.view(mx.uint16) if w.dtype == mx.bfloat16 else w
        lines = mx.array(pack(shared(numbers))).view(w.dtype)
        return cls(lines, (w.shape[0], w.shape[1]), kernel)

    @classmethod
    def joined(cls, matrices: Sequence["NativeMatrix"]) -> "NativeMatrix":
        """One matrix with the outputs of several, one after the other.

        Raises:
            ValueError: they differ in columns or type, or a number of outputs is not a multiple of 16.
        """
        first = matrices[0]
        for each in matrices:
            if each.kind != first.kind or each.shape[0] % LINE:
                raise ValueError(
                    f"{each.shape} {each.dtype} and {first.shape} {first.dtype} cannot be joined: they need the same "
                    f"columns and type, and a multiple of {LINE} outputs"
                )
        lines = mx.concatenate([each.lines for each in matrices])
        mx.eval(lines)
        return cls(lines, (sum(each.shape[0] for each in matrices), first.shape[1]), first.kernel)

    @property
    def kind(self) -> tuple[Any, ...]:
        """What matrices that are joined have in common."""
        return self.shape[1], self.dtype

    @cached_property
    def _array(self) -> NativeArray:
        """The lines as the kernel sees them."""
        return native_array(self.lines)

    @property
    def dtype(self) -> mx.Dtype:
        return self.lines.dtype

    @property
    def nbytes(self) -> int:
        return self.lines.nbytes

    def rows(self, ids: mx.array) -> mx.array:
        """Some rows of the matrix: (...) integers to (..., I)."""
        lines = self.lines[ids // LINE, :, ids % LINE]
        return lines.flatten(-2)[..., : self.shape[1]]

    def __call__(self, x: mx.array, bias: mx.array | None = None) -> mx.array:
        """x @ Wᵀ + bias: (..., I) and (O,) or None to (..., O), in x's type."""
        rows = rows_of(native_array(x))  # `x.reshape` would take 20 µs
        of_bias = None if bias is None else native_array(bias.astype(mx.float32))
        return mlx_array(self._multiply(rows, of_bias), *x.shape[:-1])

    def _multiply(self, rows: NativeArray, bias: NativeArray | None) -> NativeArray:
        """The same of rows (R, I) as a kernel sees them; the bias is float32."""
        y = empty((rows.shape[0], self.shape[0]), rows.dtype)
        self.kernel.multiply(rows, self._array, bias, y, threads_for(rows.shape[0] * self.nbytes))
        return y


def attend_runs(
    query: mx.array,
    key_pages: mx.array | QuantizedPages,
    value_pages: mx.array | QuantizedPages,
    reads: DecodeRuns,
    scale: float,
) -> mx.array:
    """Attention of one row of each of R requests; no key or value is copied.

    Args:
        query: (R, H, D).
        key_pages, value_pages: (num_blocks + 1, page_size, Hkv, D), in query's type or in eight bits.
        reads: see `DecodeRuns`.
        scale: a number.

    Returns:
        (R, H, D) in query's type.
    """
    out = attend_slots(*kept_arrays(query, key_pages, value_pages), reads, scale)
    return mx.array(out.owner).view(query.dtype)


def kept_arrays(
    query: mx.array, key_pages: mx.array | QuantizedPages, value_pages: mx.array | QuantizedPages
) -> tuple[NativeArray, KeptArray, KeptArray]:
    """Queries, and the slots of pages of keys and values one after the other, as a kernel sees them."""
    keys, values = map(_parts, (key_pages, value_pages))
    mx.eval(query, *keys, *values)  # in one go
    return native_array(query), KeptArray(*map(_slots_of, keys)), KeptArray(*map(_slots_of, values))


def _parts(pages: mx.array | QuantizedPages) -> tuple[mx.array, ...]:
    return pages.arrays if isinstance(pages, QuantizedPages) else (pages,)


def _slots_of(pages: mx.array) -> NativeArray:
    """(num_blocks + 1, page_size, ...) to (S, ...)."""
    array = native_array(pages)
    blocks, page_size, *rest = array.shape
    return array._replace(shape=(blocks * page_size, *rest))


def attend_slots(
    query: NativeArray, keys: KeptArray, values: KeptArray, reads: DecodeRuns, scale: float
) -> NativeArray:
    """`attend_runs` of arrays as a kernel sees them; keys and values are those of all slots, (S, Hkv, D)."""
    out = empty(query.shape, query.dtype)
    size = 2 * reads.tokens * keys.slot_bytes
    reads.kernel.attend(query, keys, values, out, *reads.arrays, scale, threads_for(size))
    return out
