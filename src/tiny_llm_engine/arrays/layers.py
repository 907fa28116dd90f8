"""Linear layers: a weight multiplies itself, so no model asks what kind of weight it has."""

from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

Array = Any  # of the port's library


class Linear(Protocol):
    """A matrix (O, I), perhaps with a bias: x (..., I) to (..., O), in x's type."""

    @property
    def shape(self) -> tuple[int, int]: ...

    @property
    def nbytes(self) -> int: ...

    def __call__(self, x: Array) -> Array: ...


class DenseLinear(partial[Array]):
    """A plain matrix: Day 1.1's `linear`, to which its arguments `w` (O, I) and `bias`, (O,) or None, are bound."""

    @property
    def weight(self) -> Array:
        return self.keywords["w"]

    @property
    def bias(self) -> Array | None:
        return self.keywords["bias"]

    @property
    def shape(self) -> tuple[int, int]:
        return self.weight.shape[0], self.weight.shape[1]

    @property
    def nbytes(self) -> int:
        return self.weight.nbytes


@dataclass(frozen=True, eq=False)
class BiasedLinear:
    """A layer of any other kind, and a bias that is added to its output.

    Args:
        layer: (O, I).
        bias: (O,).
    """

    layer: Linear
    bias: Array

    @property
    def shape(self) -> tuple[int, int]:
        return self.layer.shape

    @property
    def nbytes(self) -> int:
        return self.layer.nbytes

    def __call__(self, x: Array) -> Array:
        return self.layer(x) + self.bias


def matrix_and_bias(layer: Any) -> tuple[Any, Array | None]:
    """A layer without its bias, and the bias."""
    return (layer.layer, layer.bias) if isinstance(layer, BiasedLinear) else (layer, None)


def with_bias(layer: Any, bias: Array | None) -> Linear:
    """A layer whose weight multiplies itself, and the bias if there is one."""
    return layer if bias is None else BiasedLinear(layer, bias)


class ExpertMatrices(tuple[Linear, ...]):
    """The linear layers (O, I) of X experts."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """(X, O, I)."""
        first: Any = self[0]
        return len(self), *first.shape
