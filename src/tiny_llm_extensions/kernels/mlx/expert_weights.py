"""The matrices of a layer's experts: one array, or a linear layer of each."""

from dataclasses import dataclass
from typing import Any, TypeGuard

import mlx.core as mx

from tiny_llm_engine.arrays.layers import ExpertMatrices


@dataclass(frozen=True, eq=False)
class QuantizedExperts:
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
Experts = mx.array | QuantizedExperts | ExpertMatrices


def reads_no_count(experts: Experts) -> TypeGuard[mx.array | QuantizedExperts]:
    """Whether MLX multiplies rows by these matrices in one call: the host need not know how many rows each has.

    On a CPU it does so for plain float32 alone.
    """
    if isinstance(experts, mx.array):
        return experts.dtype == mx.float32 or not on_cpu()
    return isinstance(experts, QuantizedExperts)


def on_cpu() -> bool:
    return mx.default_device() == mx.Device(mx.cpu)
