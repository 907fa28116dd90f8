"""The matrices of a layer's experts: one array, or a linear layer of each. Given."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

import mlx.core as mx

from .linear_layer import Linear, linear_layer
from .quantized_weights import QuantizedWeights


class ExpertMatrices(tuple[Linear, ...]):
    """The linear layers (O, I) of X experts."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """(X, O, I)."""
        first: Any = self[0]
        return len(self), *first.shape


@dataclass(frozen=True, eq=False)
class _QuantizedExperts:
    """The quantised matrices (O, I) of X experts, for MLX's product on a GPU.

    Args:
        weight: (X, O, I · bits / 32) words, uint32.
        scales, biases: (X, O, I / group_size).
        group_size: numbers that share a scale and a bias.
        bits: 4 or 8.
    """

    weight: mx.array
    scales: mx.array
    biases: mx.array
    group_size: int
    bits: int

    def gathered(self, x: mx.array, **options: Any) -> mx.array:
        """x (N, 1, I), each row by the matrix of its expert, to (N, 1, O)."""
        # In x's type scales in float32 would be rounded, see `quantized_linear`.
        dtype = mx.float32 if self.scales.dtype == mx.float32 else x.dtype
        scales, biases = self.scales.astype(dtype), self.biases.astype(dtype)
        sizes = {"group_size": self.group_size, "bits": self.bits}
        out = mx.gather_qmm(x.astype(dtype), self.weight, scales, biases, transpose=True, **sizes, **options)
        return out.astype(x.dtype)


# One array, plain or quantised, (X, O, I) where one call multiplies by all of them.
Experts = mx.array | _QuantizedExperts | ExpertMatrices


def experts_of(weights: Any) -> Experts:
    """The experts from an array (X, O, I), or from X matrices (O, I) as `linear_layer` takes them.

    An array stays one where MLX multiplies by it in one call.
    """
    if isinstance(weights, _QuantizedExperts) or (isinstance(weights, mx.array) and reads_no_count(weights)):
        return weights
    matrices: Any = weights
    return ExpertMatrices(map(linear_layer, matrices))


def stack_experts(matrices: Sequence[Any]) -> Experts:
    """Quantised matrices of X experts as one weight: side by side on a CPU, an array on a GPU."""
    quantized = [each for each in matrices if isinstance(each, QuantizedWeights)]
    kinds = {(each.group_size, each.bits) for each in quantized}
    if len(quantized) < len(matrices) or len(kinds) > 1 or _on_cpu():
        return ExpertMatrices(map(linear_layer, matrices))
    return _stack_quantized(quantized)


def _stack_quantized(matrices: Sequence[QuantizedWeights]) -> _QuantizedExperts:
    """Quantised matrices as one; they have the same groups and bits."""
    weight, scales, biases = (mx.stack(list(part)) for part in zip(*(w.parts for w in matrices), strict=True))
    mx.eval(weight, scales, biases)
    return _QuantizedExperts(weight, scales, biases, matrices[0].group_size, matrices[0].bits)


def packed_experts(experts: Experts, make: Callable[[Linear], Linear]) -> Experts:
    """The experts with each layer replaced by what `make` makes of it; quantised ones in one array stay."""
    if isinstance(experts, _QuantizedExperts):
        return experts
    return ExpertMatrices(make(linear_layer(each)) for each in experts)


def reads_no_count(experts: Experts) -> TypeGuard[mx.array | _QuantizedExperts]:
    """Whether MLX multiplies rows by these matrices in one call: the host need not know how many rows each has.

    On a CPU it does so for plain float32 alone.
    """
    if isinstance(experts, mx.array):
        return experts.dtype == mx.float32 or not _on_cpu()
    return isinstance(experts, _QuantizedExperts)


def _on_cpu() -> bool:
    return mx.default_device() == mx.Device(mx.cpu)
