"""Matrices in 4 and 8 bits for the kernel of Day 4.1, with MLX's arrays on a CPU."""

from typing import Any

import mlx.core as mx

from ..native import quantized_product
from ..native.kernel import NativeArray, empty, rows_of, shared, threads_for
from ..native.quantized_product import LINE, PackedMatrix, QuantizedKernel
from ..quantized_matrix import SLICE_ROWS, QuantizedMatrix
from .native import NAMES, mlx_array, native_array

FLOATS = (mx.bfloat16, mx.float32)
CONSTANTS = *FLOATS, mx.float16


class NativeQuantizedMatrix(QuantizedMatrix):
    """A `QuantizedMatrix` of MLX's arrays."""

    @property
    def _array(self) -> NativeArray:
        """See `KernelMatrix`."""
        return native_array(self.lines)

    def _as_packed(self) -> PackedMatrix:
        arrays = self._array, native_array(self.constants)
        return PackedMatrix(self.kernel, *arrays, self.shape[0], self.group_size, self.bits, self.x_bits)

    @classmethod
    def of(cls, w: Any, kernel: QuantizedKernel, x_bits: int = 8) -> "NativeQuantizedMatrix":
        """Packs a matrix on the CPU, some rows at a time.

        Args:
            w: Day 2.3's `QuantizedWeights`, with its words.
            kernel, x_bits: see `NativeQuantizedMatrix`.

        Raises:
            ValueError: its scales are neither bf16 nor float16 nor float32.
        """
        words, scales, biases = w.parts
        if scales.dtype not in CONSTANTS:
            raise ValueError(f"scales in {scales.dtype}: the kernel reads bfloat16, float16 and float32")
        numbers = shared(mx.contiguous(words))
        starts = range(0, len(numbers), SLICE_ROWS)
        lines = mx.concatenate([_packed_lines(numbers[at : at + SLICE_ROWS], w.bits) for at in starts])
        constants = mx.array(quantized_product.pack_constants(_bits_of(scales), _bits_of(biases)))
        constants = constants.view(scales.dtype)
        return cls(lines, w.shape, kernel, constants, w.group_size, w.bits, w.dtype, x_bits)

    def rows(self, ids: mx.array) -> mx.array:
        """Some rows of the matrix, dequantised: (...) integers to (..., I), as Day 2.2 computes them."""
        block, place = ids // LINE, ids % LINE
        fours = self.lines[block, :, place]
        if self.bits == 4:
            fours = mx.concatenate([fours & 15, fours >> 4], axis=-1)
        constants = self.constants[block, :, :, place].astype(mx.float32)
        groups = fours.reshape(*ids.shape, -1, self.group_size).astype(mx.float32)
        return (groups * constants[..., :1] + constants[..., 1:]).flatten(-2).astype(self.dtype)

    def __call__(self, x: mx.array, bias: mx.array | None = None) -> mx.array:
        """x @ Wᵀ + bias with x rounded, see `x_bits`: (..., I) and (O,) or None to (..., O), in x's type.

        Raises:
            ValueError: x has other columns, or is not bf16 or float32; or the bias has another size.
        """
        if x.shape[-1] != self.shape[1] or x.dtype not in FLOATS:
            raise ValueError(
                f"x is {x.shape} {NAMES.get(x.dtype, x.dtype)}, and must be (..., {self.shape[1]}) bfloat16 or float32"
            )
        of_bias = None if bias is None else native_array(bias.astype(mx.float32))
        return mlx_array(self._multiply(rows_of(native_array(x)), of_bias)).reshape(
            *x.shape[:-1], self.shape[0]
        )

    def _multiply(self, rows: NativeArray, bias: NativeArray | None) -> NativeArray:
        """The same of rows (R, I) as a kernel sees them; the bias is float32."""
        if bias is not None and bias.shape != self.shape[:1]:
            raise ValueError(
                f"bias has {bias.shape[0]} numbers, and W {self.shape} has {self.shape[0]} outputs"
            )
        y = empty((rows.shape[0], self.shape[0]), rows.dtype)
        of_bias = None if bias is None else bias.address
        threads = threads_for(rows.shape[0] * self.nbytes)
        self._packed.multiply(
            rows.address, y.address, of_bias, rows.shape[0], rows.dtype == "bfloat16", threads
        )
        return y


def _packed_lines(words: Any, bits: int) -> mx.array:
    return mx.array(quantized_product.pack(quantized_product.numbers_of(words, bits), bits))


def _bits_of(array: mx.array) -> Any:
    """The numbers as NumPy has them: bf16 as uint16."""
    return shared(array.view(mx.uint16) if array.dtype == mx.bfloat16 else array)
