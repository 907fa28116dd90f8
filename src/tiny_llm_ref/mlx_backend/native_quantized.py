"""Matrices in 4 and 8 bits for the kernel of Day 4.1, with MLX's arrays on a CPU. Given."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from ..native import quantized_product
from ..native.arrays import empty, rows_of, shared
from ..native.quantized_product import LINE
from ..native.threads import available_threads
from .native import native_array
from .quantized_weights import QuantizedWeights

FLOATS = (mx.bfloat16, mx.float32)  # types of scales and biases


@dataclass(frozen=True, eq=False)
class NativeQuantizedMatrix:
    """A matrix (O, I) in 4 or 8 bits, packed in lines. A product rounds x to bytes, see `quantized_product.multiply`.

    Args:
        lines: (O / 16, I / C, 16, 4), uint8, see `quantized_product.pack`.
        constants: (O / 16, I / group_size, 2, 16), bf16 or float32, see `quantized_product.pack_constants`.
        shape: (O, I).
        group_size: numbers that share a scale and a bias: 32, 64 or 128.
        bits: 4 or 8.
    """

    lines: mx.array
    constants: mx.array
    shape: tuple[int, int]
    group_size: int
    bits: int

    @classmethod
    def of(cls, w: QuantizedWeights) -> "NativeQuantizedMatrix":
        """Packs a matrix on the CPU.

        Raises:
            ValueError: its scales are neither bf16 nor float32.
        """
        words, scales, biases = w.parts
        if scales.dtype not in FLOATS:
            raise ValueError(f"scales in {scales.dtype}: the kernel reads bfloat16 and float32")
        numbers = quantized_product.numbers_of(shared(mx.contiguous(words)), w.bits)
        lines = mx.array(quantized_product.pack(numbers, w.bits))
        constants = mx.array(quantized_product.pack_constants(_bits_of(scales), _bits_of(biases)))
        return cls(lines, constants.view(scales.dtype), w.shape, w.group_size, w.bits)

    @classmethod
    def joined(cls, matrices: Sequence["NativeQuantizedMatrix"]) -> "NativeQuantizedMatrix":
        """One matrix with the outputs of several, one after the other.

        Raises:
            ValueError: they differ in columns, groups, bits or type, or one has a number of outputs that is no multiple
                of 16.
        """
        first = matrices[0]
        for each in matrices:
            if each._kind != first._kind or each.shape[0] % LINE:
                raise ValueError(
                    f"{each} and {first} cannot be joined: they need the same columns, groups, bits and type, and a "
                    f"multiple of {LINE} outputs"
                )
        lines, constants = (
            mx.concatenate([getattr(each, part) for each in matrices]) for part in ("lines", "constants")
        )
        mx.eval(lines, constants)
        outputs = sum(each.shape[0] for each in matrices)
        return cls(lines, constants, (outputs, first.shape[1]), first.group_size, first.bits)

    def outputs(self, start: int, stop: int) -> "NativeQuantizedMatrix":
        """The matrix of some outputs, without a copy.

        Raises:
            ValueError: `start` or `stop` is not a multiple of 16, or there are no such outputs.
        """
        if start % LINE or stop % LINE or not 0 <= start < stop <= self.shape[0]:
            raise ValueError(f"outputs {start} to {stop} of {self.shape[0]}: give multiples of {LINE}")
        blocks = slice(start // LINE, stop // LINE)
        shape = (stop - start, self.shape[1])
        return type(self)(self.lines[blocks], self.constants[blocks], shape, self.group_size, self.bits)

    def __repr__(self) -> str:
        O, I = self.shape
        return f"({O}, {I}) in {self.bits} bits, groups of {self.group_size}, {self.dtype}"

    @property
    def _kind(self) -> tuple[Any, ...]:
        return self.shape[1], self.group_size, self.bits, self.dtype

    @property
    def dtype(self) -> mx.Dtype:
        """The type of the dequantised numbers."""
        return self.constants.dtype

    @property
    def nbytes(self) -> int:
        return self.lines.nbytes + self.constants.nbytes

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
        """x @ Wᵀ + bias with x rounded to bytes: (..., I) and (O,) or None to (..., O), in x's type."""
        rows = rows_of(native_array(x))
        y = empty((rows.shape[0], self.shape[0]), rows.dtype)
        of_bias = None if bias is None else native_array(bias.astype(mx.float32))
        matrix = native_array(self.lines), native_array(self.constants)
        sizes = self.group_size, self.bits, available_threads()
        quantized_product.multiply(rows, *matrix, of_bias, y, *sizes)
        return mx.array(y.owner).view(x.dtype).reshape(*x.shape[:-1], self.shape[0])


def native_weights(w: QuantizedWeights) -> QuantizedWeights:
    """A quantised matrix for the kernel of Day 4.1, instead of words, scales and biases. See `of`."""
    return QuantizedWeights(None, None, None, w.group_size, w.bits, NativeQuantizedMatrix.of(w))


def _bits_of(array: mx.array) -> Any:
    """The numbers as NumPy has them: bf16 as uint16."""
    return shared(array.view(mx.uint16) if array.dtype == mx.bfloat16 else array)
