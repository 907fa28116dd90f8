"""The matrices of a layer's experts: one array, or a matrix of each. Given."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

import mlx.core as mx

from .projection import Weights
from .quantized_weights import QuantizedWeights


class ExpertMatrices(tuple[Weights, ...]):
    """X matrices (O, I) of any kind that `project` takes."""

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


Experts = mx.array | _QuantizedExperts | ExpertMatrices  # (X, O, I)


def stack_experts(matrices: Sequence[Weights]) -> Experts:
    """The matrices of X experts as one array, plain or quantised; quantised ones side by side on a CPU."""
    plain = [each for each in matrices if isinstance(each, mx.array)]
    if len(plain) == len(matrices):
        stacked = mx.stack(plain)
        mx.eval(stacked)
        return stacked
    quantized = [each for each in matrices if isinstance(each, QuantizedWeights) and each.prepared is None]
    kinds = {(each.group_size, each.bits) for each in quantized}
    if len(quantized) < len(matrices) or len(kinds) > 1 or _on_cpu():
        return ExpertMatrices(matrices)
    return _stack_quantized(quantized)


def _stack_quantized(matrices: Sequence[QuantizedWeights]) -> _QuantizedExperts:
    """Quantised matrices as one; they have the same groups and bits."""
    weight, scales, biases = (mx.stack(list(part)) for part in zip(*(w.parts for w in matrices), strict=True))
    mx.eval(weight, scales, biases)
    return _QuantizedExperts(weight, scales, biases, matrices[0].group_size, matrices[0].bits)


def packed_experts(experts: Experts, pack: Callable[[mx.array], Any]) -> Experts:
    """Plain experts in another layout, one by one; quantised ones have theirs already."""
    return ExpertMatrices(pack(each) for each in experts) if isinstance(experts, mx.array) else experts


def reads_no_count(experts: Experts) -> TypeGuard[mx.array | _QuantizedExperts]:
    """Whether MLX multiplies rows by these matrices in one call: the host need not know how many rows each has.

    On a CPU it does so for plain float32 alone.
    """
    if isinstance(experts, mx.array):
        return experts.dtype == mx.float32 or not _on_cpu()
    return isinstance(experts, _QuantizedExperts)


def _on_cpu() -> bool:
    return mx.default_device() == mx.Device(mx.cpu)
