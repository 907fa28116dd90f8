"""A step in one call, by `layers.cpp`.

Operation by operation, a layer of MLX is some thirty arrays, each with its place in a graph. For one token of a small
model this takes many times as long as reading the weights. The call writes the keys and values of the step where they
belong, in memory that MLX holds; nothing else reads it meanwhile.
"""

from array import array
from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from tiny_llm_engine.arrays.layers import matrix_and_bias
from tiny_llm_engine.arrays.windows import WindowedLayer, inner_layer

from ..kernel_matrix import is_native
from ..native.kernel import LINE, NativeArray, available_threads, empty
from ..native.layers import LayersKernel, LayersStep, layer_fields, pages_of, plain_matrix
from .native import NAMES, NativeMatrix, native_array
from .page_attention import attend_in_pages


class NativeStep(LayersStep):
    """A `LayersStep` of MLX's arrays.

    Args:
        model: whose layers each are one that `_is_native`, or such a layer with a window.
        kernel: `layers.cpp` with the solution's kernels.
        takes_chunks: see `LayersStep`.
    """

    def __init__(self, model: Any, kernel: LayersKernel, takes_chunks: bool):
        first = inner_layer(model.layers[0])
        self._biases: list[NativeArray] = []
        eps, of_mlx = first.input_layernorm.eps, (NAMES, mx.array, available_threads)
        super().__init__(model, kernel, eps, _sizes(first), *of_mlx, takes_chunks)

    def _native(self, numbers: mx.array) -> NativeArray:
        return native_array(numbers)

    def _new(self, model: Any, *shape: int) -> NativeArray:
        return empty(shape, NAMES[model.norm.weight.dtype])

    def _written(self, model: Any, numbers: NativeArray) -> mx.array:
        return mx.array(numbers.owner).view(model.norm.weight.dtype)

    def _pages(self, pools: Sequence[Any]) -> array:
        return pages_of([_addresses_of(pool) for pool in pools])

    def _layer(self, layer: Any) -> list[int]:
        inner = inner_layer(layer)
        matrices = [[self._matrix(w) for w in each] for each in _weights(inner)]
        addresses = [0 if weight is None else native_array(weight).address for weight in _norms(inner)]
        return layer_fields(addresses, isinstance(layer, WindowedLayer), matrices)

    def _matrix(self, w: Any) -> list[int]:
        (matrix, bias), of_bias = matrix_and_bias(w), None
        if bias is not None:
            self._biases.append(native_array(bias.astype(mx.float32)))
            of_bias = self._biases[-1].address
        if isinstance(matrix, NativeMatrix):
            return plain_matrix(matrix._array.address, of_bias, *matrix.shape)
        return matrix._packed.fields(of_bias)


def _addresses_of(pool: Any) -> list[int]:
    """Where the arrays of a pool are, computed: asked once for as long as only kernels write to them."""
    if not pool.known_addresses:
        pool.materialize()
        # Arrays are not kept: a write would copy one that is held elsewhere.
        pool.known_addresses = [native_array(part).address for part in pool.arrays]
    return pool.known_addresses


def use_native_step(model: Any, kernel: LayersKernel, takes_chunks: bool) -> None:
    """Puts a `NativeStep` on a model whose layers it can compute, where the kernel works."""
    inner = [inner_layer(layer) for layer in model.layers]
    is_whole = model.is_first and model.is_last  # not a stage of a pipeline
    if is_whole and all(_is_native(layer, model.norm.weight.dtype) for layer in inner) and kernel.works:
        model.compute = NativeStep(model, kernel, takes_chunks)


def _is_native(layer: Any, dtype: mx.Dtype) -> bool:
    """Whether a layer without experts has all its numbers in this type, quantised matrices apart."""
    if (
        not hasattr(layer.mlp, "w_gate")
        or layer.packed_attention is not attend_in_pages
        or layer.head_dim % 32
    ):
        return False
    weights = [w for each in _weights(layer) for w in each]
    if not all(map(is_native, weights)) or any(w.shape[0] % LINE for w in weights):
        return False
    plain = [w.dtype for w in weights if isinstance(w, NativeMatrix)]
    return {*plain, *(weight.dtype for weight in _norms(layer) if weight is not None)} == {dtype}


def _sizes(layer: Any) -> tuple[int, ...]:
    heads, kv_heads = (w.shape[0] // layer.head_dim for w in (layer.wq, layer.wk))
    size, hidden = layer.mlp.w_down.shape
    return size, heads, kv_heads, layer.head_dim, hidden


def _norms(layer: Any) -> list[mx.array | None]:
    norms = layer.input_layernorm, layer.post_attention_layernorm, layer.q_norm, layer.k_norm
    return [getattr(norm, "weight", None) for norm in norms]


def _weights(layer: Any) -> tuple[tuple[Any, ...], ...]:
    mlp = layer.mlp
    return (layer.wq, layer.wk, layer.wv), (layer.wo,), (mlp.w_gate, mlp.w_up), (mlp.w_down,)
