"""All layers of a step of decodes in one call, by `layers.cpp`: what it reads, and the call."""

from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from ..layers import Array
from .attention import KEPT, DecodeKernel
from .kernel import FLOAT, NUMBER, POINTER, Kernel, NativeArray, ProductKernel
from .library import GIVEN, NativeError, library
from .page_reads import DecodeRuns, PageReads
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


class LayersStep(ABC):
    """The layers of a model: those of a step of decodes in one call, and those of other steps one by one.

    Args:
        layers: of the model.
        kernel: of the solution in use.
        eps: of all norms.
        sizes: of a row, the number of heads and of heads of keys, the size of a head, and of a row in the MLP.
        fields: of each layer, see `layer_fields`.
    """

    def __init__(
        self,
        layers: Sequence[Any],
        kernel: LayersKernel,
        eps: float,
        sizes: tuple[int, ...],
        fields: Iterable[Sequence[int]],
    ):
        self.layers, self.kernel, self.eps, self.sizes = list(layers), kernel, eps, sizes
        self.scale = sizes[3] ** -0.5
        self._layers = array("q", [field for layer in fields for field in layer])

    def __call__(self, x: Array, step: Any, pools: Sequence[Any]) -> Array:
        """See `Qwen3ModelWeek3.through_layers`."""
        masks, rows = (step.mask, step.window_mask or step.mask), x.shape[1]
        if all(isinstance(mask, PageReads) and mask.has_decodes_alone(rows) for mask in masks):
            return self._compute(x, step, [mask.decodes for mask in masks], pools)
        for layer, pool in zip(self.layers, pools, strict=True):
            x = layer(x, step, pool)
        return x

    @abstractmethod
    def _compute(self, x: Array, step: Any, decodes: list[DecodeRuns], pools: Sequence[Any]) -> Array:
        """Writes the keys and values of the step to the pools; returns the residual stream after the layers."""

    def _run(
        self,
        x: NativeArray,
        tables: Sequence[int],
        stride: int,
        pools: Iterable[Sequence[int]],
        kept: str,
        decodes: Sequence[DecodeRuns],
        threads: int,
    ) -> None:
        """Computes the layers: the residual stream x (1, R, E) is read, and written.

        Args:
            tables: addresses of cosines, sines and slots.
            stride: numbers of a row of cosines.
            pools: addresses of the keys, values and scales of each layer, see `Pool` in C++.
            kept: type of the keys.
            decodes: of layers without and with a window.
        """
        pages = array("q", [address for pool in pools for address in (*pool, 0, 0)[:4]])
        runs = [part.address for reads in decodes for part in reads.arrays]
        places = _address(self._layers), _address(pages)
        sizes = len(self.layers), x.shape[1], *self.sizes, stride
        fields = array("q", [x.address, *tables, *places, *runs, *sizes])
        compute = self.kernel.compute_of(kept)
        self.kernel.check(compute(_address(fields), self.eps, self.scale, x.dtype == "bfloat16", threads))


def _address(fields: array) -> int:
    return fields.buffer_info()[0]
