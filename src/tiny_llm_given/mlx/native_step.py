"""The layers of a step of decodes in one call, by `layers.cpp`.

Operation by operation, a layer of MLX is some thirty arrays, each with its place in a graph. For one token of a small
model this takes many times as long as reading the weights. The call writes the keys and values of the step where they
belong, in memory that MLX holds; nothing else reads it meanwhile.
"""

from array import array
from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from ..layers import BiasedLinear
from ..native.kernel import LINE, NativeArray, available_threads, empty, shared
from ..native.layers import LayersKernel, layer_fields, plain_matrix
from ..windows import WindowedLayer, inner_layer
from .native import NAMES, DecodeRuns, NativeMatrix, native_array
from .native_quantized import is_native
from .page_attention import PageReads, attend_in_pages


class NativeStep:
    """The layers of a model: those of a step of decodes in one call, and those of other steps one by one.

    Args:
        layers: of the model, each one that `_is_native`, or such a layer with a window.
        kernel: of the solution in use.
    """

    def __init__(self, layers: Sequence[Any], kernel: LayersKernel):
        self.layers, self.kernel = list(layers), kernel
        first = inner_layer(layers[0])
        self.eps, self.scale, self.sizes = first.input_layernorm.eps, first.head_dim**-0.5, _sizes(first)
        self._biases: list[NativeArray] = []
        self._layers = array("q", [field for layer in layers for field in self._fields(layer)])

    def __call__(self, x: mx.array, step: Any, pools: Sequence[Any]) -> mx.array:
        """See `Qwen3ModelWeek3.through_layers`."""
        masks = [step.mask, step.window_mask or step.mask]
        if all(_has_decodes_alone(mask, x.shape[1]) for mask in masks):
            return self._compute(x, step, [mask.decodes for mask in masks], pools)
        for layer, pool in zip(self.layers, pools, strict=True):
            x = layer(x, step, pool)
        return x

    def _compute(
        self, x: mx.array, step: Any, decodes: Sequence[DecodeRuns], pools: Sequence[Any]
    ) -> mx.array:
        """Writes the keys and values of the step to the pools; returns the residual stream after the layers."""
        slots = step.slots.astype(mx.int64)
        mx.eval(x, slots, step.rows, [pool.arrays for pool in pools])
        out = empty(x.shape, NAMES[x.dtype])
        out.owner[...] = shared(x.view(mx.uint16) if out.dtype == "bfloat16" else x)
        cosines, sines, places = map(native_array, (*step.rows, slots))
        pages = array("q", [field for pool in pools for field in _pool_fields(pool)])
        runs = [part.address for reads in decodes for part in reads._arrays]
        stride = cosines.shape[-1]
        # The tables of the device's RoPE have both halves of a head: -sin, and then sin.
        of_sines = sines.address + 4 * (stride - self.sizes[3] // 2)
        arrays = out.address, cosines.address, of_sines, places.address
        sizes = len(self.layers), x.shape[1], *self.sizes, stride
        fields = array("q", [*arrays, _address(self._layers), _address(pages), *runs, *sizes])
        compute = self.kernel.compute_of(NAMES[pools[0].keys.dtype])
        how = self.eps, self.scale, out.dtype == "bfloat16", available_threads()
        self.kernel.check(compute(_address(fields), *how))
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


def _address(fields: array) -> int:
    return fields.buffer_info()[0]


def _pool_fields(pool: Any) -> list[int]:
    """A `Pool`. Its arrays are not kept: a write would copy one that is held elsewhere."""
    addresses = [native_array(part).address for part in pool.arrays]
    return [*addresses, 0, 0][:4]  # numbers that are not int8 have no scales


def _has_decodes_alone(reads: Any, rows: int) -> bool:
    """Whether each row is a request that reads its past and itself by the kernel of decodes."""
    if not isinstance(reads, PageReads) or reads.chunks or reads.decodes is None:
        return False
    return len(reads.decodes.rows) == rows


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
