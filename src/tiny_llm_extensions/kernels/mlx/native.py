"""The kernels of Day 4.1 with MLX's arrays on a CPU.

A kernel reads numbers, so its arguments are computed before the call, and `mx.compile` cannot trace it. It writes into
an array of NumPy, which MLX copies: for the rows of a decode this takes 1 µs, and a new array of MLX would take 13.
"""

from functools import cached_property

import mlx.core as mx

from tiny_llm_engine.arrays.mlx.quantized_pages import QuantizedPages

from ..kernel_matrix import KernelMatrix
from ..native.attention import KeptArray
from ..native.kernel import NativeArray, ProductKernel, empty, of_buffer, pack, rows_of, shared, threads_for
from ..native.page_reads import DecodeRuns

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


class NativeMatrix(KernelMatrix):
    """A matrix (O, I) in bf16 or float32; its kernel is a `ProductKernel`."""

    @classmethod
    def of(cls, w: mx.array, kernel: ProductKernel) -> "NativeMatrix":
        """Packs a matrix on the CPU."""
        numbers = w.view(mx.uint16) if w.dtype == mx.bfloat16 else w
        lines = mx.array(pack(shared(numbers))).view(w.dtype)
        return cls(lines, (w.shape[0], w.shape[1]), kernel)

    @staticmethod
    def _concatenated(arrays: list[mx.array]) -> mx.array:
        whole = mx.concatenate(arrays)
        mx.eval(whole)
        return whole

    @cached_property
    def _array(self) -> NativeArray:
        """The lines as the kernel sees them."""
        return native_array(self.lines)

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
