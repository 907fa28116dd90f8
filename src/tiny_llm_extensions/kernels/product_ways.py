"""Ways to compute products with a weight, and how a loaded model gets another one: what both ports share."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from tiny_llm_engine.arrays.layers import Array, Linear

OF_ATTENTION, OF_MLP = ("wq", "wk", "wv", "wo"), ("w_gate", "w_up", "w_down")
PLAIN, PACKED, NATIVE = "plain", "packed", "native"  # layouts of a weight


@dataclass(frozen=True)
class ProductWay:
    """A way to compute products.

    Args:
        layout: the layout in which it reads weights.
        prepare: makes this layout of a matrix (O, I), plain or quantised.
        multiply: (..., I), the prepared matrix, (O,) or None to (..., O).
        most_rows: None is any number.
    """

    layout: str
    prepare: Callable[[Any], Any]
    multiply: Callable[..., Array]
    most_rows: int | None = None


def by_layer(x: Array, w: Linear, bias: Array | None) -> Array:
    """The product of a weight that multiplies itself."""
    return w(x) if bias is None else w(x) + bias


def ways_of_quantized(
    usual: Callable[[Any], Any], packed: Callable[..., Any] | None
) -> dict[str, ProductWay]:
    """The ways to multiply by `QuantizedWeights`, by name.

    Args:
        usual: Day 2.3's layout.
        packed: takes weights, and `x_bits` of the integers to which activations are rounded; None where the kernel of
            Day 4.1 does not work.
    """
    ways = {"usual": ProductWay(PLAIN, usual, by_layer)}
    if packed is not None:
        for name, x_bits in (("int8", 8), ("int16", 16)):
            ways[name] = ProductWay(name, partial(packed, x_bits=x_bits), by_layer)
    return ways


def replace_matrices(layer: Any, make: Callable[[Linear], Linear]) -> None:
    """Replaces the linear layers of a model's layer, one by one, by what `make` makes of them."""
    owned = [(layer, name) for name in OF_ATTENTION if hasattr(layer, name)]
    if hasattr(layer.mlp, "pack"):
        layer.mlp.pack(make)
    else:
        owned += [(layer.mlp, name) for name in OF_MLP if hasattr(layer.mlp, name)]
    for owner, name in owned:
        setattr(owner, name, make(getattr(owner, name)))


def replace_table(
    solution: Any,
    model: Any,
    pack: Callable[[Array], Linear],
    can_pack: Callable[[Array], bool] = lambda table: True,
) -> None:
    """Packs a plain table; a tied head shares it."""
    table = model.embedding
    if not isinstance(table, solution.Embedding) or not can_pack(table.weight):
        return
    packed = pack(table.weight)
    model.embedding = solution.PackedEmbedding(table.vocab_size, table.embedding_dim, packed)
    if model.config.tie_word_embeddings and model.is_last:
        model.w_lm_head = packed
