"""A layer of Week 3 by the kernels of Day 4.1: four products, and one kernel between any two of them. Given.

Operation by operation, a layer is forty calls. Those between the products read little, and each takes some
microseconds: for one token a third of a step.
"""

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import torch

from ..biased_weights import BiasedWeights
from ..layer_weights import has_mixture
from ..native import between_products
from ..native.arrays import NativeArray
from ..native.product import LINE
from .native import NativeMatrix, native_array
from .native_quantized import NativeQuantizedMatrix
from .quantized_weights import QuantizedWeights

Matrix = NativeMatrix | NativeQuantizedMatrix
Biased = tuple[Matrix, torch.Tensor | None]


class NativeLayer:
    """The two parts of a layer around its attention.

    Queries, keys and values are one product, and so are gate and up; matrices of different kinds, for example of 4 and
    of 8 bits, are multiplied one by one. The layer gives its matrices up, so that memory never holds two copies of the
    model.

    Args:
        layer: a `Qwen3LayerWeek3` that `can_be_native`; it calls these parts from now on.
    """

    def __init__(self, layer: Any):
        self.head_dim = layer.head_dim
        self.heads, self.kv_heads = (_matrix(w).shape[0] // layer.head_dim for w in (layer.wq, layer.wk))
        self.w_in = _taken(layer, "wq", "wk", "wv")
        self.wo = _taken(layer, "wo")
        self.mlp = layer.mixture if has_mixture(layer) else NativeMLP(layer)
        self.eps = layer.input_layernorm.eps
        self.input_norm, self.mlp_norm = (
            native_array(norm.weight) for norm in (layer.input_layernorm, layer.post_attention_layernorm)
        )
        self.query_norm, self.key_norm = _weight_of(layer.q_norm), _weight_of(layer.k_norm)
        layer.project_in, layer.project_out = self.project_in, self.project_out

    def project_in(
        self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """See `Qwen3LayerWeek3.project_in`."""
        x = x[0]
        heads = _product(self._normalized(x, self.input_norm), self.w_in)
        query = x.new_empty(len(x), self.heads, self.head_dim)
        key, value = (x.new_empty(len(x), self.kv_heads, self.head_dim) for _ in range(2))
        between_products.split_heads(
            native_array(heads),
            self.query_norm,
            self.key_norm,
            native_array(cos),
            native_array(sin),
            native_array(query),
            native_array(key),
            native_array(value),
            self.eps,
            torch.get_num_threads(),
        )
        return query, key, value

    def project_out(self, x: torch.Tensor, heads: torch.Tensor) -> torch.Tensor:
        """See `Qwen3LayerWeek3.project_out`."""
        x = x[0] + _product(heads.flatten(1), self.wo)
        return (x + self.mlp(self._normalized(x, self.mlp_norm)))[None]

    def _normalized(self, x: torch.Tensor, weight: NativeArray) -> torch.Tensor:
        """RMSNorm of rows (R, E)."""
        y = torch.empty_like(x)
        between_products.normalize(
            native_array(x), weight, native_array(y), self.eps, torch.get_num_threads()
        )
        return y


class NativeMLP:
    """The MLP of a layer, which gives its matrices up."""

    def __init__(self, layer: Any):
        self.w_gate_up = _taken(layer, "w_gate", "w_up")
        self.w_down = _taken(layer, "w_down")

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """See `Qwen3MLP`: (R, E) to (R, E)."""
        gate_up = _product(x, self.w_gate_up)
        hidden = x.new_empty(len(x), gate_up.shape[1] // 2)
        between_products.gate(native_array(gate_up), native_array(hidden), torch.get_num_threads())
        return _product(hidden, self.w_down)


def can_be_native(layer: Any) -> bool:
    """Whether a `NativeLayer` computes what a layer with the device's kernels does: all its matrices are packed.

    A mixture of experts computes as before: its matrices are packed for the kernels as well, where the layer's are.
    """
    of_mlp = () if has_mixture(layer) else ("w_gate", "w_up", "w_down")
    matrices = {name: _matrix(getattr(layer, name)) for name in ("wq", "wk", "wv", "wo", *of_mlp)}
    packed = all(isinstance(each, (NativeMatrix, NativeQuantizedMatrix)) for each in matrices.values())
    return packed and layer.head_dim % 32 == 0 and all(matrices[n].shape[0] % LINE == 0 for n in of_mlp[:1])


def has_kernel(layer: Any) -> bool:
    """Whether the products of a layer are kernels of Day 4.1."""
    return isinstance(_matrix(layer.wq), (NativeMatrix, NativeQuantizedMatrix))


def is_native(layer: Any) -> bool:
    """Whether a layer calls the parts of a `NativeLayer`."""
    return isinstance(getattr(layer.project_in, "__self__", None), NativeLayer)


def _matrix(w: Any) -> Any:
    """What a weight multiplies by, without its bias."""
    w = w.weight if isinstance(w, BiasedWeights) else w
    return w.prepared if isinstance(w, QuantizedWeights) else w


def _taken(layer: Any, *names: str) -> list[Biased]:
    """The matrices of these names, neighbours of one kind as one, and their biases; the layer has them no more."""
    weights = [vars(layer).pop(name) for name in names]
    return [_joined(list(same)) for _, same in groupby(weights, _kind)]


def _kind(w: Any) -> tuple[Any, ...]:
    matrix = _matrix(w)
    return type(matrix), matrix.kind


def _joined(weights: Sequence[Any]) -> Biased:
    matrices = [_matrix(w) for w in weights]
    whole = matrices[0] if len(matrices) == 1 else type(matrices[0]).joined(matrices)
    return whole, _joined_biases(weights)


def _joined_biases(weights: Sequence[Any]) -> torch.Tensor | None:
    """The biases one after the other, in float32; None if there are none."""
    if not any(isinstance(w, BiasedWeights) for w in weights):
        return None
    return torch.cat(
        [w.bias.float() if isinstance(w, BiasedWeights) else torch.zeros(w.shape[0]) for w in weights]
    )


def _weight_of(norm: Any) -> NativeArray | None:
    """The weight of a head's norm; None where a family has no such norm."""
    weight = getattr(norm, "weight", None)
    return None if weight is None else native_array(weight)


def _product(x: torch.Tensor, weights: Sequence[Biased]) -> torch.Tensor:
    """The outputs of all matrices, one after the other."""
    outputs = [matrix(x, bias) for matrix, bias in weights]
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=-1)
