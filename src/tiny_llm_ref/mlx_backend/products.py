"""Products with a matrix in bf16 or float32 on a CPU: MLX's own, and the kernel of Day 4.1. Given.

On a Linux CPU, MLX's product took 7 to 11 times longer in bf16, and 1.5 to 2 times in float32. So an engine measures
both on its machine (`product_ways`), and says which to use (`use_products`). Until then, and on a GPU, it is MLX's.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import mlx.core as mx

from ..biased_weights import BiasedWeights
from ..groups import RowParallelWeights
from ..layer_weights import has_mixture
from ..native import product, quantized_product
from .basics import linear
from .embedding import Embedding
from .kernels import choose_kernels
from .native import NativeMatrix, PackedEmbedding
from .native_attention import computes
from .native_quantized import NativeQuantizedMatrix, native_weights
from .page_attention import page_reads
from .quantized_weights import QuantizedWeights, prepare_weights, quantized_linear
from .window_mask import WindowedLayer

MATRICES = ("wq", "wk", "wv", "wo", "w_gate", "w_up", "w_down")
PLAIN, NATIVE = "plain", "native"  # layouts of a weight


@dataclass(frozen=True)
class ProductWay:
    """A way to compute products.

    Args:
        layout: of the weights that it reads.
        prepare: makes this layout of a matrix (O, I), plain or quantised.
        multiply: (..., I), the prepared matrix, (O,) or None to (..., O).
        most_rows: None is any number.
    """

    layout: str
    prepare: Callable[[Any], Any]
    multiply: Callable[..., mx.array]
    most_rows: int | None = None


def dense_linear(x: mx.array, w: mx.array, bias: mx.array | None = None) -> mx.array:
    """Day 1.1's `linear` by the chosen product: (..., I), (O, I), (O,) or None to (..., O).

    Args:
        w: a matrix, or what `pack_weight` has made of it.
    """
    return w(x, bias) if isinstance(w, NativeMatrix) else linear(x, w, bias)


def pack_weight(w: mx.array) -> mx.array | NativeMatrix:
    """The matrix (O, I) in the chosen layout, for `dense_linear`."""
    return w if _layout() == PLAIN else NativeMatrix.of(w)


def pack_layers(model: Any) -> None:
    """Packs the matrices of all layers in place, one by one: memory never holds two copies of the model."""
    for layer in _plain_layers(model):
        for name in MATRICES:
            if name in vars(layer):
                setattr(layer, name, _packed(getattr(layer, name)))
        if has_mixture(layer) and _layout() != PLAIN:
            layer.mixture.pack(pack_weight)
    if _layout() == NATIVE:
        _use_kernels(model)


def _use_kernels(model: Any) -> None:
    """The other kernels of Day 4.1: its layout can be looked up row by row, so the table and the head have it too."""
    if isinstance(model.embedding, Embedding):
        model.embedding = PackedEmbedding(NativeMatrix.of(model.embedding.weight))
    model.w_lm_head = _packed(model.w_lm_head)
    _attend_in_pages(model)


def _attend_in_pages(model: Any) -> None:
    if model.packed_mask is choose_kernels("device").packed_mask and computes(model.config):
        model.packed_mask = page_reads


def _plain_layers(model: Any) -> list[Any]:
    """The layers without their windows."""
    return [layer.layer if isinstance(layer, WindowedLayer) else layer for layer in model.layers]


def _packed(w: Any) -> Any:
    """A weight in the chosen layout; quantised weights have theirs already."""
    if isinstance(w, BiasedWeights):
        return BiasedWeights(_packed(w.weight), w.bias)
    if isinstance(w, RowParallelWeights):
        return RowParallelWeights(_packed(w.weight), w.group)
    return pack_weight(w) if isinstance(w, mx.array) else w


_WAYS = {
    "matrix": ProductWay(PLAIN, lambda w: w, linear),
    "native": ProductWay(NATIVE, NativeMatrix.of, dense_linear),
}


def product_ways() -> dict[str, ProductWay]:
    """The ways that MLX has on this processor, by name; on a GPU there is one, and nothing to choose."""
    if mx.default_device() != mx.Device(mx.cpu) or not product.works():
        return {}
    return dict(_WAYS)


def quantized_ways() -> dict[str, ProductWay]:
    """The ways to multiply by `QuantizedWeights` on this machine's CPU, by name.

    "int8" rounds activations to bytes, for the kernel of Day 4.1, and "int16" to two planes of bytes; "usual" is Day
    2.3's.
    """
    usual = {"usual": ProductWay(PLAIN, prepare_weights, quantized_linear)}
    if mx.default_device() != mx.Device(mx.cpu) or quantized_product.problem() is not None:
        return usual
    planes = {"int8": 1, "int16": 2}
    return usual | {
        name: ProductWay(name, partial(native_weights, planes=count), quantized_linear)
        for name, count in planes.items()
    }


def use_products(layout: str | None, plain: tuple[str, ...] = ()) -> None:
    """Sets what `pack_weight` makes from now on.

    Args:
        layout: of the layers' weights; None is the plain one.
        plain: for weights in the plain layout, the names of the ways; MLX has one.
    """
    _chosen[:] = [] if layout is None else [layout]


_chosen: list[str] = []


def _layout() -> str:
    return _chosen[0] if _chosen else PLAIN


def use_native_layers(model: Any, chunk_kernel: bool = True) -> None:
    """Attention by the kernels of Day 4.1, where the products of a layer are kernels; the rest stays MLX's."""
    if any(map(_has_kernels, _plain_layers(model))):
        _attend_in_pages(model)


def _has_kernels(layer: Any) -> bool:
    """Whether a matrix of the layer is packed for a kernel of Day 4.1."""
    matrices = [_matrix(getattr(layer, name)) for name in MATRICES if name in vars(layer)]
    return any(isinstance(each, (NativeMatrix, NativeQuantizedMatrix)) for each in matrices)


def _matrix(w: Any) -> Any:
    """What a weight multiplies by, without its bias."""
    w = w.weight if isinstance(w, BiasedWeights) else w
    return w.prepared if isinstance(w, QuantizedWeights) else w
