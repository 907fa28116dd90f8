"""Matrices in 4 and 8 bits for the kernel of Day 4.1, with torch's arrays on a CPU."""

import sys
from typing import Any

import torch

from ..native import quantized_product
from ..native.kernel import NativeArray
from ..native.quantized_product import LINE, PackedMatrix, QuantizedKernel
from ..quantized_matrix import SLICE_ROWS, QuantizedMatrix
from .native import native_array
from .operators import operator

FLOATS = {torch.bfloat16: "bfloat16", torch.float32: "float32"}
CONSTANTS = FLOATS | {torch.float16: "float16"}


class NativeQuantizedMatrix(QuantizedMatrix):
    """A `QuantizedMatrix` of torch's arrays."""

    @property
    def _array(self) -> NativeArray:
        """See `KernelMatrix`."""
        return native_array(self.lines)

    def _as_packed(self) -> PackedMatrix:
        sizes = self.shape[0], self.group_size, self.bits, self.x_bits
        return _packed_matrix(self.kernel, self.lines, self.constants, *sizes)

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
        numbers = words.contiguous().view(torch.int32).numpy()
        (O, I), columns = w.shape, quantized_product.COLUMNS[w.bits]
        lines = torch.empty(-(-O // LINE), I // columns, LINE, 4, dtype=torch.uint8)
        for start in range(0, O, SLICE_ROWS):
            some = quantized_product.numbers_of(numbers[start : start + SLICE_ROWS], w.bits)
            packed = torch.from_numpy(quantized_product.pack(some, w.bits))
            lines[start // LINE :][: len(packed)] = packed
        constants = quantized_product.pack_constants(_bits_of(scales), _bits_of(biases))
        constants = torch.from_numpy(constants).view(scales.dtype)
        return cls(lines, (O, I), kernel, constants, w.group_size, w.bits, w.dtype, x_bits)

    @property
    def device(self) -> torch.device:
        return self.lines.device

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        """Some rows of the matrix, dequantised: (...) integers to (..., I), as Day 2.2 computes them.

        By NumPy: for one row, fourteen operations of torch would take longer than a layer.
        """
        arrays = self.lines.numpy(), _bits_of(self.constants), ids.numpy()
        rows = quantized_product.unpacked_rows(*arrays, self.bits, self.group_size)
        return torch.from_numpy(rows).to(self.dtype)

    def __call__(self, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """x @ Wᵀ + bias with x rounded, see `x_bits`: (..., I) and (O,) or None to (..., O), in x's type.

        Raises:
            ValueError: x has other columns, or is not bf16 or float32 on the CPU; or the bias has another size.
        """
        if torch.compiler.is_compiling():
            sizes = self.shape[0], self.group_size, self.bits, self.x_bits
            return _LINEAR(x, self.lines, self.constants, bias, *sizes, self.kernel.package)
        return _multiply(x, self._packed, bias)


def _bits_of(array: torch.Tensor) -> Any:
    """The numbers as NumPy has them: bf16 as uint16."""
    array = array.contiguous()
    return (array.view(torch.uint16) if array.dtype == torch.bfloat16 else array).numpy()


def _packed_matrix(
    kernel: QuantizedKernel, lines: torch.Tensor, constants: torch.Tensor, *sizes: int
) -> PackedMatrix:
    w = NativeArray(lines.data_ptr(), tuple(lines.shape), "uint8", lines)
    of_constants = NativeArray(
        constants.data_ptr(), tuple(constants.shape), CONSTANTS[constants.dtype], constants
    )
    return PackedMatrix(kernel, w, of_constants, *sizes)


def _multiply(x: torch.Tensor, w: PackedMatrix, bias: torch.Tensor | None) -> torch.Tensor:
    if x.shape[-1] != w.columns or x.dtype not in FLOATS or not x.is_cpu:
        raise ValueError(
            f"x is {tuple(x.shape)} {x.dtype} on {x.device}, and must be (..., {w.columns}) bfloat16 or float32 on cpu"
        )
    x = x.contiguous()
    y = x.new_empty(*x.shape[:-1], w.outputs)
    if bias is not None:
        if tuple(bias.shape) != (w.outputs,):
            raise ValueError(
                f"bias has {bias.numel()} numbers, and W ({w.outputs}, {w.columns}) has {w.outputs} outputs"
            )
        bias = bias.float().contiguous()
    of_bias = None if bias is None else bias.data_ptr()
    rows, is_bf16 = x.numel() // w.columns, x.dtype == torch.bfloat16
    w.multiply(x.data_ptr(), y.data_ptr(), of_bias, rows, is_bf16, torch.get_num_threads())
    return y


def _linear(
    x: torch.Tensor,
    lines: torch.Tensor,
    constants: torch.Tensor,
    bias: torch.Tensor | None,
    *sizes_and_package: Any,
) -> torch.Tensor:
    *sizes, package = sizes_and_package
    kernel = sys.modules[package].NATIVE.quantized_product
    return _multiply(x, _packed_matrix(kernel, lines, constants, *sizes), bias)


# It gets the package of the kernel: a learner's is never the reference's.
_LINEAR = operator(
    "native_quantized_linear(Tensor x, Tensor lines, Tensor constants, Tensor? bias, int outputs, int group_size, "
    "int bits, int x_bits, str package) -> Tensor",
    _linear,
    lambda x, lines, constants, bias, outputs, *others: x.new_empty(*x.shape[:-1], outputs),
)
