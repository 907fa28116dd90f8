"""The layers of a step of decodes in one call, by `layers.cpp`.

Operation by operation, a layer of MLX is some thirty arrays, each with its place in a graph. For one token of a small
model this takes many times as long as reading the weights. The call writes the keys and values of the step where they
belong, in memory that MLX holds; nothing else reads it meanwhile.
"""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from ..kernel_matrix import is_native
from ..layers import BiasedLinear
from ..native.kernel import LINE, NativeArray, available_threads, empty, shared
from ..native.layers import LayersKernel, LayersStep, layer_fields, plain_matrix
from ..native.page_reads import DecodeRuns
from ..windows import WindowedLayer, inner_layer
from .native import NAMES, NativeMatrix, native_array
from .page_attention import attend_in_pages


class NativeStep(LayersStep):
    """A `LayersStep` of MLX's arrays.

    Args:
        layers: of the model, each one that `_is_native`, or such a layer with a window.
        kernel: of the solution in use.
    """

    def __init__(self, layers: Sequence[Any], kernel: LayersKernel):
        first = inner_layer(layers[0])
        self._biases: list[NativeArray] = []
        super().__init__(layers, kernel, first.input_layernorm.eps, _sizes(first), map(self._fields, layers))

    def _compute(self, x: mx.array, step: Any, decodes: list[DecodeRuns], pools: Sequence[Any]) -> mx.array:
        slots = step.slots.astype(mx.int64)
        mx.eval(x, slots, step.rows, [pool.arrays for pool in pools])
        out = empty(x.shape, NAMES[x.dtype])
        out.owner[...] = shared(x.view(mx.uint16) if out.dtype == "bfloat16" else x)
        cosines, sines, places = map(native_array, (*step.rows, slots))
        stride = cosines.shape[-1]
        # The tables of the device's RoPE have both halves of a head: -sin, and then sin.
        of_sines = sines.address + 4 * (stride - self.sizes[3] // 2)
        tables = cosines.address, of_sines, places.address
        # Arrays of pools are not kept: a write would copy one that is held elsewhere.
        addresses = ([native_array(part).address for part in pool.arrays] for pool in pools)
        kept = NAMES[pools[0].keys.dtype]
        self._run(out, tables, stride, addresses, kept, decodes, available_threads())
        return mx.array(out.owner).view(x.dtype)

    def _fields(self, layer: Any) -> list[int]:
        inner = inner_layer(layer)
        matrices = [[self._matrix_fields(w) for w in each] for each in _weights(inner)]
        addresses = [0 if weight is None else native_array(weight).address for weight in _norms(inner)]
        return layer_fields(addresses, isinstance(layer, WindowedLayer), matrices)

    def _matrix_fields(self, w: Any) -> list[int]:
        matrix: Any = w.layer if isinstance(w, BiasedLinear) else w
        bias = w.bias if isinstance(w, BiasedLinear) else None
        if bias is not None:
            bias = bias.astype(mx.float32)
            mx.eval(bias)
            self._biases.append(native_array(bias))
        of_bias = None if bias is None else self._biases[-1].address
        if isinstance(matrix, NativeMatrix):
            return plain_matrix(matrix._array.address, of_bias, *matrix.shape)
        return matrix._packed.fields(of_bias)


def use_native_step(model: Any, kernel: LayersKernel) -> None:
    """Puts a `NativeStep` on a model whose layers it can compute, where the kernel works."""
    inner = [inner_layer(layer) for layer in model.layers]
    if all(_is_native(layer, model.norm.weight.dtype) for layer in inner) and kernel.works:
        model.through_layers = NativeStep(model.layers, kernel)


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
