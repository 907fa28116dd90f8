"""The kernels of Day 4.1 with torch's arrays on a CPU."""

import sys
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch

from ..kernel_matrix import KernelMatrix
from ..native.kernel import NativeArray, PortArrays, ProductKernel, pack
from .operators import operator

TYPES = torch.bfloat16, torch.float32, torch.int64, torch.int8, torch.uint8
NAMES = {dtype: str(dtype).removeprefix("torch.") for dtype in TYPES}


def native_array(array: torch.Tensor) -> NativeArray:
    """An array of torch as a kernel sees it: a copy if its numbers do not follow each other in memory."""
    array = array.contiguous()
    return NativeArray(array.data_ptr(), tuple(array.shape), NAMES[array.dtype], array)


def torch_array(numbers: NativeArray) -> torch.Tensor:
    """An array that a kernel has written as torch's, without a copy."""
    if isinstance(numbers.owner, torch.Tensor):
        return numbers.owner
    return torch.from_numpy(numbers.owner).view(getattr(torch, numbers.dtype))


def addresses_of(pool: Any) -> Sequence[int]:
    """Where the arrays of a pool are."""
    return [part.data_ptr() for part in pool.arrays]


ARRAYS = PortArrays(NAMES, native_array, torch.tensor, torch_array, addresses_of, torch.get_num_threads)


class NativeMatrix(KernelMatrix):
    """A matrix (O, I) in bf16 or float32; its kernel is a `ProductKernel`."""

    @classmethod
    def of(cls, w: torch.Tensor, kernel: ProductKernel) -> "NativeMatrix":
        """Packs a matrix on the CPU."""
        numbers = w.contiguous().view(torch.uint16) if w.dtype == torch.bfloat16 else w.contiguous()
        lines = torch.from_numpy(pack(numbers.numpy()))
        return cls(lines.view(w.dtype), (w.shape[0], w.shape[1]), kernel)

    @cached_property
    def _array(self) -> NativeArray:
        """The lines as the kernel sees them."""
        return native_array(self.lines)

    @property
    def device(self) -> torch.device:
        return self.lines.device

    def __call__(self, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """x @ Wᵀ + bias: (..., I) and (O,) or None to (..., O), in x's type."""
        if torch.compiler.is_compiling():
            return _LINEAR(x, self.lines, bias, self.shape[0], self.kernel.package)
        return _multiply(x, self._array, bias, self.shape[0], self.kernel)


def _multiply(
    x: torch.Tensor, lines: NativeArray, bias: torch.Tensor | None, outputs: int, kernel: ProductKernel
) -> torch.Tensor:
    x = x.contiguous()
    y = x.new_empty(*x.shape[:-1], outputs)
    rows, columns = y.numel() // outputs, x.shape[-1]
    kernel.multiply(
        NativeArray(x.data_ptr(), (rows, columns), NAMES[x.dtype], x),
        lines,
        None if bias is None else native_array(bias.float()),
        NativeArray(y.data_ptr(), (rows, outputs), NAMES[y.dtype], y),
        torch.get_num_threads(),
    )
    return y


def _linear(
    x: torch.Tensor, lines: torch.Tensor, bias: torch.Tensor | None, outputs: int, package: str
) -> torch.Tensor:
    return _multiply(x, native_array(lines), bias, outputs, sys.modules[package].NATIVE.product)


# It gets the package of the kernel: a learner's is never the reference's.
_LINEAR = operator(
    "native_linear(Tensor x, Tensor lines, Tensor? bias, int outputs, str package) -> Tensor",
    _linear,
    lambda x, lines, bias, outputs, package: x.new_empty(*x.shape[:-1], outputs),
)
