"""Linear layers: a weight multiplies itself, so no model asks what kind of weight it has. Given."""

from dataclasses import dataclass
from typing import Any, Protocol

import mlx.core as mx

from .basics import linear


class Linear(Protocol):
    """A matrix (O, I), with its bias if it has one: x (..., I) to (..., O), in x's type."""

    @property
    def shape(self) -> tuple[int, int]: ...

    @property
    def nbytes(self) -> int: ...

    def __call__(self, x: mx.array) -> mx.array: ...


@dataclass(frozen=True, eq=False)
class DenseLinear:
    """A plain matrix, multiplied by Day 1.1's `linear`.

    Args:
        weight: (O, I).
        bias: (O,) or None.
    """

    weight: mx.array
    bias: mx.array | None = None

    @property
    def shape(self) -> tuple[int, int]:
        return self.weight.shape[0], self.weight.shape[1]

    @property
    def nbytes(self) -> int:
        return self.weight.nbytes

    def __call__(self, x: mx.array) -> mx.array:
        return linear(x, self.weight, self.bias)


@dataclass(frozen=True, eq=False)
class BiasedLinear:
    """A layer of any other kind, and a bias that is added to its output.

    Args:
        layer: (O, I).
        bias: (O,).
    """

    layer: Linear
    bias: mx.array

    @property
    def shape(self) -> tuple[int, int]:
        return self.layer.shape

    @property
    def nbytes(self) -> int:
        return self.layer.nbytes

    def __call__(self, x: mx.array) -> mx.array:
        return self.layer(x) + self.bias


def linear_layer(weight: Any, bias: mx.array | None = None) -> Linear:
    """The layer of a weight: an array becomes a `DenseLinear`; weights of all other kinds are layers already."""
    if not callable(weight):
        return DenseLinear(weight, bias)
    layer: Any = weight
    return layer if bias is None else BiasedLinear(layer, bias)
