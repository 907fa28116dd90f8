"""A layer of Week 3 by the kernels of Day 4.1: four products, and one kernel between any two of them.

Operation by operation, a layer is forty calls. Those between the products read little, and each takes some
microseconds: for one token a third of a step.
"""

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import torch

from tiny_llm_engine.arrays.layers import matrix_and_bias

from ..kernel_matrix import KernelMatrix, is_native
from ..native import between_products
from ..native.kernel import LINE, NativeArray, rows_of
from .native import native_array

Biased = tuple[KernelMatrix, torch.Tensor | None]


class NativeLayer:
    """A `Qwen3LayerWeek3` whose products are kernels of Day 4.1, and what is between them, too.

    Queries, keys and values are one product, and so are gate and up; matrices of different kinds, for example of 4 and
    of 8 bits, are multiplied one by one.

    Args:
        layer: one that `can_be_native`; what is joined is copied from it.
    """

    def __init__(self, layer: Any):
        self.head_dim, self.packed_attention = layer.head_dim, layer.packed_attention
        self.heads, self.kv_heads = (w.shape[0] // layer.head_dim for w in (layer.wq, layer.wk))
        self.w_in = _joined(layer.wq, layer.wk, layer.wv)
        self.w_out = _joined(layer.wo)
        self.mlp = NativeMLP(layer.mlp) if _is_dense(layer) else layer.mlp
        self.eps = layer.input_layernorm.eps
        self.input_norm, self.mlp_norm = (
            native_array(norm.weight) for norm in (layer.input_layernorm, layer.post_attention_layernorm)
        )
        self.query_norm, self.key_norm = _weight_of(layer.q_norm), _weight_of(layer.k_norm)

    def __call__(self, x: torch.Tensor, step: Any, cache: Any) -> torch.Tensor:
        """See `Qwen3LayerWeek3`."""
        query, key, value = self.project_in(x, *step.rows)
        key, value = cache.write(step.slots, key, value)
        pages = cache.key_pages, cache.value_pages
        return self.project_out(x, self.packed_attention(query, key, value, *pages, step.mask))

    def project_in(
        self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """See `Qwen3LayerWeek3.project_in`."""
        x = x[0]
        heads = _product(_normalized(x, self.input_norm, self.eps), self.w_in)
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
        x = x[0] + _product(heads.flatten(1), self.w_out)
        return (x + self.mlp(_normalized(x, self.mlp_norm, self.eps)))[None]


class NativeNorm:
    """A model's last RMSNorm, as a step of decodes has it."""

    def __init__(self, norm: Any):
        self.weight, self.eps, self._array = norm.weight, norm.eps, native_array(norm.weight)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """See `RMSNorm`: (..., E) in the weight's type to (..., E)."""
        return _normalized(x.contiguous(), self._array, self.eps)


class NativeMLP:
    """The MLP of a layer; what is joined is copied from it."""

    def __init__(self, mlp: Any):
        self.w_gate_up, self.w_down = _joined(mlp.w_gate, mlp.w_up), _joined(mlp.w_down)

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
    if layer.head_dim % 32 or not all(map(is_native, (layer.wq, layer.wk, layer.wv, layer.wo))):
        return False
    matrices = (layer.mlp.w_gate, layer.mlp.w_up, layer.mlp.w_down) if _is_dense(layer) else ()
    return all(map(is_native, matrices)) and all(w.shape[0] % LINE == 0 for w in matrices[:1])


def has_kernel(layer: Any) -> bool:
    """Whether the products of a layer are kernels of Day 4.1."""
    return isinstance(layer, NativeLayer) or is_native(layer.wq)


def _normalized(x: torch.Tensor, weight: NativeArray, eps: float) -> torch.Tensor:
    """RMSNorm of the last axis; the numbers of x follow each other in memory."""
    y = torch.empty_like(x)
    rows, out = rows_of(native_array(x)), rows_of(native_array(y))
    between_products.normalize(rows, weight, out, eps, torch.get_num_threads())
    return y


def _is_dense(layer: Any) -> bool:
    return hasattr(layer.mlp, "w_gate")


def _joined(*weights: Any) -> list[Biased]:
    """Neighbours of one kind as one matrix, with their biases."""
    return [_joined_kind([*same]) for _, same in groupby(map(matrix_and_bias, weights), _kind)]


def _kind(pair: Biased) -> tuple[Any, ...]:
    return type(pair[0]), pair[0].kind


def _joined_kind(pairs: Sequence[Biased]) -> Biased:
    matrices: list[Any] = [matrix for matrix, _ in pairs]
    whole = matrices[0] if len(matrices) == 1 else type(matrices[0]).joined(matrices)
    return whole, _joined_biases(pairs)


def _joined_biases(pairs: Sequence[Biased]) -> torch.Tensor | None:
    """The biases one after the other, in float32; None if there are none."""
    if all(bias is None for _, bias in pairs):
        return None
    return torch.cat(
        [torch.zeros(matrix.shape[0]) if bias is None else bias.float() for matrix, bias in pairs]
    )


def _weight_of(norm: Any) -> NativeArray | None:
    """The weight of a head's norm; None where a family has no such norm."""
    weight = getattr(norm, "weight", None)
    return None if weight is None else native_array(weight)


def _product(x: torch.Tensor, weights: Sequence[Biased]) -> torch.Tensor:
    """The outputs of all matrices, one after the other."""
    outputs = [matrix(x, bias) for matrix, bias in weights]
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=-1)
