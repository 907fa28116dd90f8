"""The layers of a model as `layers.cpp` reads them: which ones it can compute, and their fields in C++."""

from array import array
from collections.abc import Sequence
from itertools import chain
from typing import Any

from tiny_llm_engine.arrays.layers import Array, ExpertMatrices, matrix_and_bias
from tiny_llm_engine.arrays.windows import WindowedLayer, inner_layer

from ..kernel_matrix import NO_MATRIX, is_native
from ..quantized_matrix import QuantizedMatrix
from .attention import fits
from .kernel import LINE, NativeArray, PortArrays, floats_of, numbers_of, of_numpy


class LayerFields:
    """The fields of layers, and what they point at.

    Args:
        arrays: of the port.
    """

    def __init__(self, arrays: PortArrays):
        self._arrays = arrays
        self._kept: list[Any] = []

    def layer(self, layer: Any) -> list[int]:
        """A `Layer`."""
        inner = inner_layer(layer)
        norms = [0 if weight is None else self.address(weight) for weight in norms_of(inner)]
        mlp = self._experts(inner.mlp) if is_mixture(inner.mlp) else self._dense(inner.mlp)
        return [*norms, int(isinstance(layer, WindowedLayer)), *self._matrices(*attention_of(inner)), *mlp]

    def _dense(self, mlp: Any) -> list[int]:
        return [*self._matrices(mlp.w_gate, mlp.w_up, mlp.w_down), *NO_MATRIX, 0, 0, 0, 0]

    def _experts(self, mlp: Any) -> list[int]:
        pairs = zip(mlp.w_gate_up, mlp.w_down, strict=True)
        experts = array("q", self._matrices(*chain(*pairs)))
        self._kept.append(experts)
        sizes = experts.buffer_info()[0], mlp.num_experts, mlp.k, int(mlp.renormalise)
        return [*NO_MATRIX, *NO_MATRIX, *NO_MATRIX, *self.matrix(mlp.w_router), *sizes]

    def _matrices(self, *weights: Any) -> list[int]:
        return [field for w in weights for field in self.matrix(w)]

    def matrix(self, w: Any) -> list[int]:
        """A `Matrix`; its bias becomes float32."""
        matrix, bias = matrix_and_bias(w)
        if bias is None:
            return matrix.fields(None)
        floats = of_numpy(floats_of(numbers_of(self.native(bias))))
        self._kept.append(floats)
        return matrix.fields(floats.address)

    def address(self, numbers: Array) -> int:
        """Where an array is, which is kept."""
        return self.native(numbers).address

    def native(self, numbers: Array) -> NativeArray:
        """An array as the kernel sees it, which is kept."""
        self._kept.append(self._arrays.native_array(numbers))
        return self._kept[-1]


def can_compute(model: Any) -> bool:
    """Whether `layers.cpp` computes a model: a whole one, of packed matrices, with all other numbers in one type."""
    layers, config = [inner_layer(layer) for layer in model.layers], model.config
    heads = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    is_whole = model.is_first and model.is_last  # not a stage of a pipeline
    has_size = fits(*heads) and config.head_dim % (2 * LINE) == 0
    return is_whole and has_size and all(_is_native(layer, model.norm.weight.dtype) for layer in layers)


def can_look_up(table: Any, dtype: Any) -> bool:
    """Whether `layers.cpp` reads rows of a table of embeddings: a packed one, of numbers in the model's type."""
    return is_native(table) and table.shape[1] % LINE == 0 and _numbers_in([table], dtype)


def _is_native(layer: Any, dtype: Any) -> bool:
    matrices = [*attention_of(layer), *_matrices_of_mlp(layer.mlp)]
    routers = [layer.mlp.w_router] if is_mixture(layer.mlp) else []
    if not all(map(is_native, matrices + routers)) or any(w.shape[0] % LINE for w in matrices):
        return False
    norms = (weight.dtype for weight in norms_of(layer) if weight is not None)
    return {*norms} == {dtype} and _numbers_in(matrices + routers, dtype)


def _numbers_in(matrices: Sequence[Any], dtype: Any) -> bool:
    """Whether all those that are not quantised have this type."""
    weights = [matrix_and_bias(w)[0] for w in matrices]
    return all(isinstance(w, QuantizedMatrix) or w.dtype == dtype for w in weights)


def _matrices_of_mlp(mlp: Any) -> list[Any]:
    """Without the router of a mixture; experts that are one array are no packed matrices."""
    if not is_mixture(mlp):
        return [mlp.w_gate, mlp.w_up, mlp.w_down]
    experts = mlp.w_gate_up, mlp.w_down
    return [w for each in experts for w in (each if isinstance(each, ExpertMatrices) else [each])]


def is_mixture(mlp: Any) -> bool:
    """Whether an MLP is a mixture of experts."""
    return not hasattr(mlp, "w_gate")


def attention_of(layer: Any) -> tuple[Any, ...]:
    """The matrices of attention, in the order of a `Layer`."""
    return layer.wq, layer.wk, layer.wv, layer.wo


def norms_of(layer: Any) -> list[Array | None]:
    """The weights of the norms, in the order of a `Layer`; None where a family has no such norm."""
    norms = layer.input_layernorm, layer.post_attention_layernorm, layer.q_norm, layer.k_norm
    return [getattr(norm, "weight", None) for norm in norms]


def columns_of_mlp(layer: Any) -> int:
    """The columns of down, of each expert where there are some."""
    down = inner_layer(layer).mlp.w_down
    return down.shape[-1]
