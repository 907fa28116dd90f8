"""All layers of a step of decodes in one call, by `layers.cpp`: what it reads, and the call."""

from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np

from .attention import KEPT, DecodeKernel
from .kernel import FLOAT, NUMBER, POINTER, Kernel, ProductKernel
from .library import GIVEN, NativeError, library
from .quantized_product import QuantizedKernel

BETWEEN = "between_products.cpp"
MATRIX_FIELDS = 9  # of a `Matrix` in C++


def plain_matrix(address: int, bias: int | None, outputs: int, columns: int) -> list[int]:
    """A `Matrix` of bf16 or float32 numbers, packed for `product.cpp`; see `PackedMatrix.fields` for the others."""
    return [address, 0, bias or 0, outputs, columns, 0, 0, 0, 0]


def layer_fields(
    norms: Sequence[int], is_windowed: bool, matrices: Sequence[Sequence[Sequence[int]]]
) -> list[int]:
    """A `Layer`.

    Args:
        norms: addresses of the weights before attention, before the MLP, of queries and of keys; 0 for none.
        is_windowed: whether it has a sliding window.
        matrices: of queries, keys and values; of the output; of gate and up; down. What is joined is one matrix.
    """
    absent = [0] * MATRIX_FIELDS
    fields = [*norms, int(is_windowed)]
    for each, most in zip(matrices, (3, 1, 2, 1), strict=True):
        for matrix in [*each, *[absent] * (most - len(each))]:
            fields += matrix
    return fields


class LayersKernel(Kernel):
    """`layers.cpp`, with the files of a solution.

    Args:
        package: that has the files.
        kernels: of these files.
    """

    file = "layers.cpp"
    tasks = ProductKernel.tasks | QuantizedKernel.tasks | DecodeKernel.tasks

    def __init__(self, package: str, kernels: Sequence[Kernel]):
        super().__init__(package)
        self.kernels = kernels

    def compute_of(self, kept: str) -> Callable[..., int]:
        """The function for pages that keep numbers of this type, see `KEPT`. Nothing is checked.

        It takes the address of a `Step`, eps, the scale of scores, whether all numbers are bf16, and the threads.

        Raises:
            NativeError: there is no such kernel on this machine.
        """
        if kept not in self._functions:
            files = (BETWEEN, GIVEN), *((kernel.file, self.package) for kernel in self.kernels)
            function = library(self.file, GIVEN, files, KEPT.get(kept, ())).compute_layers
            function.argtypes = [POINTER, FLOAT, FLOAT, NUMBER, NUMBER]
            self._functions[kept] = function
        return self._functions[kept]

    @cached_property
    def _functions(self) -> dict[str, Callable[..., int]]:
        return {}

    def try_out(self) -> None:
        """See `Kernel`: each of the files, for a task that is met in a layer has written to pages already."""
        for problem in filter(None, (kernel.problem for kernel in self.kernels)):
            raise NativeError(problem)
        step = np.zeros(32, np.int64)  # of no layers
        self.check(self.compute_of("bfloat16")(step.ctypes.data, 0.0, 0.0, True, 1))
