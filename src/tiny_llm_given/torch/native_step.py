"""The layers of a step of decodes in one call, by `layers.cpp`.

A layer by itself is nine calls, each with threads that begin and end. For one token of a small model this takes as long
as reading the weights.
"""

from collections.abc import Sequence
from typing import Any

import torch

from ..native.kernel import NativeArray
from ..native.layers import LayersKernel, LayersStep, layer_fields, plain_matrix
from ..native.page_reads import DecodeRuns
from ..windows import WindowedLayer, inner_layer
from .large_pages import in_large_pages
from .native import NAMES, NativeMatrix, native_array
from .native_layer import Biased, NativeLayer, NativeMLP, NativeNorm


class NativeStep(LayersStep):
    """A `LayersStep` of torch's arrays.

    Args:
        layers: of the model, each a `NativeLayer` with a `NativeMLP`, or one with a window.
        kernel: of the solution in use.
    """

    def __init__(self, layers: Sequence[Any], kernel: LayersKernel):
        first = inner_layer(layers[0])
        super().__init__(layers, kernel, first.eps, _sizes(first), map(_fields, layers))

    def _compute(
        self, x: torch.Tensor, step: Any, decodes: list[DecodeRuns], pools: Sequence[Any]
    ) -> torch.Tensor:
        x = x.contiguous()
        cosines, sines = (part.contiguous() for part in step.rows)
        tables = [part.data_ptr() for part in (cosines, sines, step.slots)]
        addresses = (pool._addresses for pool in pools)
        kept, threads = NAMES[pools[0].keys.dtype], torch.get_num_threads()
        self._run(native_array(x), tables, cosines.shape[-1], addresses, kept, decodes, threads)
        return x


def use_native_step(model: Any, kernel: LayersKernel) -> None:
    """Puts a `NativeStep` on a model whose layers it can compute, where the kernel works."""
    inner = [inner_layer(layer) for layer in model.layers]
    dtype = NAMES.get(model.norm.weight.dtype, "")
    if all(_is_native(layer, dtype) for layer in inner) and kernel.works:
        in_large_pages(each for layer in inner for each in _weights(layer))
        model.norm = NativeNorm(model.norm)
        model.through_layers = NativeStep(model.layers, kernel)


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


def _fields(layer: Any) -> list[int]:
    inner = inner_layer(layer)
    matrices = [[_matrix_fields(*pair) for pair in each] for each in _weights(inner)]
    addresses = [0 if norm is None else norm.address for norm in _norms(inner)]
    return layer_fields(addresses, isinstance(layer, WindowedLayer), matrices)


def _matrix_fields(matrix: Any, bias: torch.Tensor | None) -> list[int]:
    of_bias = None if bias is None else bias.data_ptr()
    if isinstance(matrix, NativeMatrix):
        return plain_matrix(matrix.lines.data_ptr(), of_bias, *matrix.shape)
    return matrix._packed.fields(of_bias)
