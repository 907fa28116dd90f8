"""The layers of a step of decodes in one call, by `layers.cpp`.

A layer by itself is nine calls, each with threads that begin and end. For one token of a small model this takes as long
as reading the weights.
"""

from array import array
from collections.abc import Sequence
from itertools import chain
from typing import Any

import torch

from ..native.kernel import NativeArray
from ..native.layers import LayersKernel, layer_fields, plain_matrix
from ..windows import WindowedLayer, inner_layer
from .large_pages import in_large_pages
from .native import NAMES, DecodeRuns, NativeMatrix
from .native_layer import Biased, NativeLayer, NativeMLP, NativeNorm
from .page_attention import PageReads


class NativeStep:
    """The layers of a model: those of a step of decodes in one call, and those of other steps one by one.

    Args:
        layers: of the model, each a `NativeLayer` with a `NativeMLP`, or one with a window.
        kernel: of the solution in use.
    """

    def __init__(self, layers: Sequence[Any], kernel: LayersKernel):
        self.layers, self.kernel = list(layers), kernel
        first = inner_layer(layers[0])
        self.eps, self.scale, self.sizes = first.eps, first.head_dim**-0.5, _sizes(first)
        self._layers = array("q", [field for layer in layers for field in _fields(layer)])
        self._pools: Sequence[Any] = ()

    def __call__(self, x: torch.Tensor, step: Any, pools: Sequence[Any]) -> torch.Tensor:
        """See `Qwen3ModelWeek3.through_layers`."""
        masks = [step.mask, step.window_mask or step.mask]
        if all(_has_decodes_alone(mask, x.shape[1]) for mask in masks):
            return self._compute(x.contiguous(), step, [mask.decodes for mask in masks], pools)
        for layer, pool in zip(self.layers, pools, strict=True):
            x = layer(x, step, pool)
        return x

    def _compute(
        self, x: torch.Tensor, step: Any, decodes: Sequence[DecodeRuns], pools: Sequence[Any]
    ) -> torch.Tensor:
        """Writes the keys and values of the step to the pools, and the residual stream after the layers to x."""
        cosines, sines = (part.contiguous() for part in step.rows)
        if pools is not self._pools:  # an engine has one list of them
            self._pools, self._pages = pools, array("q", chain(*map(_pool_fields, pools)))
        runs = [part.data_ptr() for reads in decodes for part in (reads.starts, reads.counts, reads.runs)]
        arrays = (part.data_ptr() for part in (x, cosines, sines, step.slots))
        places = _address(self._layers), _address(self._pages)
        sizes = len(self.layers), x.shape[1], *self.sizes, cosines.shape[-1]
        fields = array("q", [*arrays, *places, *runs, *sizes])
        is_bf16, threads = x.dtype == torch.bfloat16, torch.get_num_threads()
        compute = self.kernel.compute_of(NAMES[pools[0].keys.dtype])
        self.kernel.check(compute(_address(fields), self.eps, self.scale, is_bf16, threads))
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


def _address(fields: array) -> int:
    return fields.buffer_info()[0]


def _pool_fields(pool: Any) -> list[int]:
    """A `Pool`."""
    addresses = [part.data_ptr() for part in pool.arrays]
    return [*addresses, 0, 0][:4]  # numbers that are not int8 have no scales


def _has_decodes_alone(reads: Any, rows: int) -> bool:
    """Whether each row is a request that reads its past and itself by the kernel of decodes."""
    if not isinstance(reads, PageReads) or reads.chunks or reads.decodes is None:
        return False
    return len(reads.decodes.rows) == rows


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
