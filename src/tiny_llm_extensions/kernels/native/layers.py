"""A step in one call, by `layers.cpp`: what it reads, and the call."""

from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np

from tiny_llm_engine.arrays.layers import Array
from tiny_llm_engine.packed_model import PackedInputs

from ..kernel_matrix import KernelMatrix
from ..quantized_matrix import QuantizedMatrix
from .attention import KEPT, DecodeKernel
from .kernel import FLOAT, NUMBER, POINTER, TILES, Kernel, NativeArray, ProductKernel
from .library import GIVEN, NativeError, library
from .page_reads import CallReads, step_reads
from .quantized_product import QuantizedKernel

POOL_FIELDS = 4  # of a `Pool` in C++
TEXT_FIELDS = 4  # of a `Text`
INCLUDED = "between_products.cpp", "prompt_attention.cpp", *TILES
NO_MATRIX = [0] * 9  # a `Matrix` in C++


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
    fields = [*norms, int(is_windowed)]
    for each, most in zip(matrices, (3, 1, 2, 1), strict=True):
        for matrix in [*each, *[NO_MATRIX] * (most - len(each))]:
            fields += matrix
    return fields


class LayersKernel(Kernel):
    """`layers.cpp`, with the files of a solution.

    Args:
        package: the package of the solution, which has the files.
        kernels: one for each of the files that it includes.
    """

    file = "layers.cpp"
    tasks = ProductKernel.tasks | QuantizedKernel.tasks | DecodeKernel.tasks

    def __init__(self, package: str, kernels: tuple[ProductKernel, QuantizedKernel, DecodeKernel]):
        super().__init__(package)
        self.kernels = kernels

    def compute_of(self, kept: str) -> Callable[..., int]:
        """The function for pages that keep numbers of this type, see `KEPT`. Nothing is checked.

        In C: (Step* step, float eps, float scale, bool all_bf16, int threads).

        Raises:
            NativeError: there is no such kernel on this machine.
        """
        if kept not in self._functions:
            files = (
                *((file, GIVEN) for file in INCLUDED),
                *((kernel.file, self.package) for kernel in self.kernels),
            )
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
    """A step in one call.

    A quantised table and a packed head are parts of the call; others are computed by the model.

    Args:
        model: with layers that the kernel can compute.
        kernel: `layers.cpp` with the solution's kernels.
        eps: the epsilon of every norm.
        sizes: of a row, the number of heads and of heads of keys, the size of a head, and of a row in the MLP.
        names, array_of, threads: of a port: names of types, an array of integers, and how many threads compute.
        takes_chunks: whether a step with a chunk is one call as well; otherwise it is computed layer by layer, by the
            model's own `compute`.
    """

    takes_lists = True  # a runner need not make arrays of its inputs

    def __init__(
        self,
        model: Any,
        kernel: LayersKernel,
        eps: float,
        sizes: tuple[int, ...],
        names: Mapping[Any, str],
        array_of: Callable[[list[int]], Array],
        threads: Callable[[], int],
        takes_chunks: bool = True,
    ):
        self.kernel, self.eps, self.sizes, self.scale = kernel, eps, sizes, sizes[3] ** -0.5
        self._names, self._array, self._threads = names, array_of, threads
        self.takes_chunks = takes_chunks
        table, head = model.embedding.weight, model.w_lm_head
        self.has_table, self.has_head = isinstance(table, QuantizedMatrix), isinstance(head, KernelMatrix)
        before = self._matrix(table) if self.has_table else NO_MATRIX
        after = self._matrix(head) if self.has_head else NO_MATRIX
        self._layers = array("q", chain(*map(self._layer, model.layers)))
        self._ends = array("q", [*before, self._native(model.norm.weight).address, *after])
        self._angles = [self._native(part) for part in (model.rope.cos, model.rope.sin)]  # keeps them alive

    @abstractmethod
    def _native(self, numbers: Array) -> NativeArray:
        """An array as the kernel sees it."""

    @abstractmethod
    def _new(self, model: Any, *shape: int) -> NativeArray:
        """An array in the model's type."""

    @abstractmethod
    def _written(self, model: Any, numbers: NativeArray) -> Array:
        """An array of a port that the kernel has written."""

    @abstractmethod
    def _layer(self, layer: Any) -> list[int]:
        """See `layer_fields`."""

    @abstractmethod
    def _matrix(self, w: Any) -> list[int]:
        """A `Matrix` in C++."""

    @abstractmethod
    def _pages(self, pools: Sequence[Any]) -> array:
        """See `pages_of`."""

    def __call__(self, model: Any, inputs: PackedInputs, pools: Sequence[Any]) -> Array | None:
        """See `Qwen3ModelWeek3`. The inputs are lists, or arrays."""
        reads = step_reads(inputs, pools[0].page_size, model.config.sliding_window is not None)
        if reads.texts and not self.takes_chunks:
            return type(model).compute(model, inputs.map(self._as_array), pools)
        return self._compute(model, inputs, reads, pools)

    def _as_array(self, numbers: Any) -> Array:
        return self._array(numbers) if isinstance(numbers, list) else numbers

    def _compute(
        self, model: Any, inputs: PackedInputs, reads: CallReads, pools: Sequence[Any]
    ) -> Array | None:
        """Writes the keys and values of the step to the pools; returns the logits.

        Before the call only numbers of Python are touched, where that is possible: when the weights of a step have
        gone through the caches, the first operation of an array library takes some fifty microseconds.
        """
        own = inputs.positions, inputs.slots, inputs.token_ids, inputs.sample_rows
        rows = [
            array("q", part if isinstance(part, list) else () if part is None else part.tolist())
            for part in own
        ]
        ids, sampled, pages = *rows[2:], self._pages(pools)
        begun = None if self.has_table else model.embedding(self._as_array(inputs.token_ids))
        x = self._new(model, len(ids), self.sizes[0]) if begun is None else self._native(begun)
        logits = self._new(model, len(sampled), model.config.vocab_size)
        addresses = [part.address for part in (x, logits, *self._angles, *reads.runs)]
        tables = map(_address, (*rows, reads.texts, reads.slots, self._layers, self._ends, pages))
        counts = len(pages) // POOL_FIELDS, len(sampled), len(reads.texts) // TEXT_FIELDS, len(reads.slots)
        sizes = *counts, model.config.sliding_window or 0, len(ids), *self.sizes
        step, kept = array("q", [*addresses, *tables, *sizes]), self._names[pools[0].keys.dtype]
        flags = self.eps, self.scale, x.dtype == "bfloat16", self._threads()
        if (blank := self.kernel.compute_of(kept)(_address(step), *flags)) != 0:
            self.kernel.check(blank)
        if not sampled:
            return None
        out = self._written(model, logits if self.has_head else x)
        return out if self.has_head else model.finish(out[None], self._array([*sampled]))


def pages_of(pools: Iterable[Sequence[int]]) -> array:
    """A `Pool` for each layer, of the addresses of its keys, values and scales."""
    return array("q", chain(*((*pool, 0, 0)[:POOL_FIELDS] for pool in pools)))


def _address(fields: array) -> int:
    return fields.buffer_info()[0]
