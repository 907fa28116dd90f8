"""A step in one call, by `layers.cpp`.

A layer by itself is nine calls, each with threads that begin and end. For one token of a small model this takes as long
as reading the weights.
"""

from array import array
from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch

from tiny_llm_engine.arrays.windows import WindowedLayer, inner_layer

from ..native.kernel import NativeArray
from ..native.layers import LayersKernel, LayersStep, layer_fields, pages_of, plain_matrix
from .large_pages import in_large_pages
from .native import NAMES, NativeMatrix, native_array
from .native_layer import Biased, NativeLayer, NativeMLP, NativeNorm


class NativeStep(LayersStep):
    """A `LayersStep` of torch's arrays.

    Args:
        model: whose layers are each a `NativeLayer` with a `NativeMLP`, or one with a window.
        kernel: `layers.cpp` with the solution's kernels.
        takes_chunks: see `LayersStep`.
    """

    def __init__(self, model: Any, kernel: LayersKernel, takes_chunks: bool):
        first = inner_layer(model.layers[0])
        of_torch = NAMES, torch.tensor, torch.get_num_threads
        super().__init__(model, kernel, first.eps, _sizes(first), *of_torch, takes_chunks)
        self._kept: WeakKeyDictionary[Any, array] = WeakKeyDictionary()  # pages of each engine

    def _native(self, numbers: torch.Tensor) -> NativeArray:
        return native_array(numbers.contiguous())

    def _new(self, model: Any, *shape: int) -> NativeArray:
        return native_array(model.norm.weight.new_empty(shape))

    def _written(self, model: Any, numbers: NativeArray) -> torch.Tensor:
        return numbers.owner

    def _layer(self, layer: Any) -> list[int]:
        inner = inner_layer(layer)
        matrices = [[self._matrix(*pair) for pair in each] for each in _weights(inner)]
        addresses = [0 if norm is None else norm.address for norm in _norms(inner)]
        return layer_fields(addresses, isinstance(layer, WindowedLayer), matrices)

    def _matrix(self, w: Any, bias: torch.Tensor | None = None) -> list[int]:
        of_bias = None if bias is None else bias.data_ptr()
        if isinstance(w, NativeMatrix):
            return plain_matrix(w.lines.data_ptr(), of_bias, *w.shape)
        return w._packed.fields(of_bias)

    def _pages(self, pools: Sequence[Any]) -> array:
        if pools[0] not in self._kept:  # written in place: where they are is asked once
            self._kept[pools[0]] = pages_of([part.data_ptr() for part in pool.arrays] for pool in pools)
        return self._kept[pools[0]]


def use_native_step(model: Any, kernel: LayersKernel, takes_chunks: bool) -> None:
    """Puts a `NativeStep` on a model whose layers it can compute, where the kernel works."""
    inner = [inner_layer(layer) for layer in model.layers]
    dtype = NAMES.get(model.norm.weight.dtype, "")
    is_whole = model.is_first and model.is_last  # not a stage of a pipeline
    if is_whole and all(_is_native(layer, dtype) for layer in inner) and kernel.works:
        in_large_pages(each for layer in inner for each in _weights(layer))
        model.norm = NativeNorm(model.norm)  # to the last bit that of the call
        model.compute = NativeStep(model, kernel, takes_chunks)


def _is_native(layer: Any, dtype: str) -> bool:
    """Whether a layer without experts has all its numbers in this type, quantised matrices apart."""
    if not isinstance(layer, NativeLayer) or not isinstance(layer.mlp, NativeMLP):
        return False
    matrices = [matrix for each in _weights(layer) for matrix, _ in each]
    plain = [matrix for matrix in matrices if isinstance(matrix, NativeMatrix)]
    norms = filter(None, _norms(layer))
    return {*(NAMES[matrix.dtype] for matrix in plain), *(norm.dtype for norm in norms)} == {dtype}


def _sizes(layer: NativeLayer) -> tuple[int, ...]:
    (down, _), *_ = layer.mlp.w_down
    return down.shape[0], layer.heads, layer.kv_heads, layer.head_dim, down.shape[1]


def _norms(layer: NativeLayer) -> tuple[NativeArray | None, ...]:
    return layer.input_norm, layer.mlp_norm, layer.query_norm, layer.key_norm


def _weights(layer: Any) -> tuple[list[Biased], ...]:
    return layer.w_in, layer.w_out, layer.mlp.w_gate_up, layer.mlp.w_down
