"""Products with a matrix: MLX has one way for each kind of weight, so there is nothing to choose. Given."""

from typing import Any

import mlx.core as mx

from .basics import linear


def dense_linear(x: mx.array, w: mx.array, bias: mx.array | None = None) -> mx.array:
    """Day 1.1's `linear`, the same on every device of MLX: (..., I), (O, I), (O,) or None to (..., O)."""
    return linear(x, w, bias)


def pack_weight(w: mx.array) -> mx.array:
    """The matrix (O, I) in the layout of the device's products, for `dense_linear`; `w` itself where there is none.

    MLX has none.
    """
    return w


def pack_layers(model: Any) -> None:
    """Packs the matrices of all layers in place; MLX has no layout to pack them in."""


def product_ways() -> dict[str, Any]:
    """The ways to compute products that an engine may choose from, by name."""
    return {}


def quantized_ways() -> dict[str, Any]:
    """The ways to multiply by `QuantizedWeights` on a CPU that an engine may choose from, by name."""
    return {}


def use_products(layout: str | None, plain: tuple[str, ...] = ()) -> None:
    """Sets what `dense_linear` uses from now on; there is no choice."""
