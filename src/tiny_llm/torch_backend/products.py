"""Products with a matrix in bf16 on a CPU: the ways to compute them, and which one takes how many rows. Given.

No way is the fastest on every processor: for one row `torch.mv` was 1.2 to 2 times faster than `F.linear` on one with
AMX, and 1.4 times slower on one with AVX-512 alone. So an engine measures them on its machine (`product_ways`), and
says which to use (`use_products`). Until then the processor's flags decide.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch

from ..biased_weights import BiasedWeights
from ..groups import RowParallelWeights
from ..layer_weights import has_mixture
from ..native import product, quantized_product
from .basics import linear
from .embedding import Embedding
from .kernels import choose_kernels
from .native import NativeMatrix, PackedEmbedding
from .native_attention import computes
from .native_layer import NativeLayer, can_be_native, has_kernel, is_native
from .native_quantized import native_weights
from .page_attention import page_reads
from .quantized_weights import prepare_weights, quantized_linear
from .window_mask import WindowedLayer

MATRICES = ("wq", "wk", "wv", "wo", "w_gate", "w_up", "w_down")
ROWS = (1, 4, 16, 128)  # at which the ways are compared
PLAIN, PACKED, NATIVE = "plain", "packed", "native"  # layouts of a weight


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
    multiply: Callable[..., torch.Tensor]
    most_rows: int | None = None


@dataclass(frozen=True)
class ProductChoice:
    """Which products are used; see `use_products`."""

    layout: str
    plain: tuple[str, ...]


def dense_linear(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Day 1.1's `linear` by the chosen product: (..., I), (O, I), (O,) or None to (..., O).

    Args:
        w: a matrix, or what `pack_weight` has made of it.
    """
    if isinstance(w, NativeMatrix):
        return w(x, bias)
    if isinstance(w, PackedWeight):
        return torch.ops.tiny_llm.packed_linear(x, w.packed, bias)
    if w.dtype != torch.bfloat16 or w.device.type != "cpu":
        return linear(x, w, bias)
    return _WAYS[_plain_way(_place(x.numel() // x.shape[-1]))].multiply(x, w, bias)


def _place(rows: Any) -> int:
    """The place in `ROWS` of the number that stands for this one; the borders are geometric means.

    Every border is one more graph where something is compiled: there 16 rows count as many.
    """
    if rows == 1:
        return 0
    if torch.compiler.is_compiling():
        return 3 if rows > 8 else 1
    return 1 + (rows > 8) + (rows > 45)


def _by_vector(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """One row, by torch's product for vectors."""
    out = torch.mv(w, x.reshape(-1)).view(*x.shape[:-1], -1)
    return out if bias is None else out + bias


TILE = 256  # rows of w that are converted to float32 at a time: they stay in the processor's cache until they are used


def _by_tiles(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """The product of bf16 numbers in float32, tile by tile: the whole weight never exists in float32.

    On a processor without bf16 units the time of a bf16 product grows in proportion to its rows. Here the weight must
    be converted, but further rows cost little.
    """
    wide = x.float()
    out = torch.cat([(wide @ tile.float().T).to(x.dtype) for tile in w.split(TILE)], dim=-1)
    return out if bias is None else out + bias


@dataclass(frozen=True, eq=False)
class PackedWeight:
    """A matrix (O, I) in oneDNN's layout: an array of torch whose memory only oneDNN can read."""

    packed: torch.Tensor


# Rows that the layout of packed weights is made for. Measured on a CPU with AMX: of 1, 4, 16 and 64 this was fastest
# over all numbers of rows.
PACKED_ROWS = 16


def _pack(w: torch.Tensor) -> PackedWeight:
    return PackedWeight(torch.ops.mkldnn._reorder_linear_weight(w.contiguous(), PACKED_ROWS))


def pack_weight(w: torch.Tensor) -> torch.Tensor | PackedWeight | NativeMatrix:
    """The matrix (O, I) in the chosen layout, for `dense_linear`; `w` itself unless it is bf16 on a CPU."""
    if w.dtype != torch.bfloat16 or w.device.type != "cpu":
        return w
    return {PLAIN: lambda w: w, PACKED: _pack, NATIVE: NativeMatrix.of}[_choice().layout](w)


def pack_layers(model: Any) -> None:
    """Packs the matrices of all layers in place, one by one: memory never holds two copies of the model.

    Native weights can be looked up row by row, so the table and the head have this layout too.
    """
    for layer in _plain_layers(model):
        for name in MATRICES:
            if name in vars(layer):
                setattr(layer, name, _packed(getattr(layer, name)))
        if has_mixture(layer):
            layer.mixture.pack(pack_weight)
    if _choice().layout == NATIVE:
        if isinstance(model.embedding, Embedding):
            model.embedding = PackedEmbedding(NativeMatrix.of(model.embedding.weight))
        model.w_lm_head = _packed(model.w_lm_head)


def use_native_layers(model: Any, chunk_kernel: bool = True) -> None:
    """Our own kernels between the products of each layer whose matrices are packed for those, and for attention.

    Args:
        model: with packed weights.
        chunk_kernel: whether chunks of prompts have a kernel of our own too, see `chunk_ways`.
    """
    device = choose_kernels("device")
    layers = [each for each in _plain_layers(model) if each.packed_attention is device.packed_attention]
    if model.packed_mask is device.packed_mask and any(map(has_kernel, layers)) and computes(model.config):
        model.packed_mask = partial(page_reads, chunk_kernel=chunk_kernel)
    for layer in filter(can_be_native, layers):
        NativeLayer(layer)


def _plain_layers(model: Any) -> list[Any]:
    """The layers that have their matrices, without their windows."""
    layers = [layer.layer if isinstance(layer, WindowedLayer) else layer for layer in model.layers]
    return [layer for layer in layers if not is_native(layer)]


def _packed(w: Any) -> Any:
    """A weight in the chosen layout; quantised weights have theirs already."""
    if isinstance(w, BiasedWeights):
        return BiasedWeights(_packed(w.weight), w.bias)
    if isinstance(w, RowParallelWeights):
        return RowParallelWeights(_packed(w.weight), w.group)
    return pack_weight(w) if isinstance(w, torch.Tensor) else w


# An operator of our own: Inductor takes oneDNN's only with weights that are constants of a graph, and then each layer
# would need a separate graph.
_library = torch.library.Library("tiny_llm", "FRAGMENT")
if not hasattr(torch.ops.tiny_llm, "packed_linear"):
    _library.define("packed_linear(Tensor x, Tensor w, Tensor? bias) -> Tensor")

    @torch.library.impl(_library, "packed_linear", "CompositeExplicitAutograd")
    def _packed_linear(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return torch.ops.mkldnn._linear_pointwise(x, w, bias, "none", [], "")

    @torch.library.register_fake("tiny_llm::packed_linear", lib=_library)
    def _shape_of_packed_linear(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return x.new_empty(*x.shape[:-1], w.shape[0])


_WAYS = {
    "vector": ProductWay(PLAIN, lambda w: w, _by_vector, most_rows=1),
    "matrix": ProductWay(PLAIN, lambda w: w, linear),
    "tiles": ProductWay(PLAIN, lambda w: w, _by_tiles),
    "onednn": ProductWay(PACKED, _pack, dense_linear),
    "native": ProductWay(NATIVE, NativeMatrix.of, dense_linear),
}


def product_ways() -> dict[str, ProductWay]:
    """The ways that this build of torch has on this processor, by name."""
    has = {PLAIN: lambda: True, PACKED: _has_onednn, NATIVE: product.works}
    return {name: way for name, way in _WAYS.items() if has[way.layout]()}


def _has_onednn() -> bool:
    """Whether oneDNN multiplies bf16 numbers here; not every build and processor does."""
    try:
        return torch.ops.mkldnn._is_mkldnn_bf16_supported()
    except AttributeError:
        return False


def quantized_ways() -> dict[str, ProductWay]:
    """The ways to multiply by `QuantizedWeights` on this machine's CPU, by name.

    "int8" rounds activations to bytes, for the kernel of Day 4.1, and "int16" to two planes of bytes; "usual" is Day
    2.3's.
    """
    usual = {"usual": ProductWay(PLAIN, prepare_weights, quantized_linear)}
    if quantized_product.problem() is not None:
        return usual
    planes = {"int8": 1, "int16": 2}
    return usual | {
        name: ProductWay(name, partial(native_weights, planes=count), quantized_linear)
        for name, count in planes.items()
    }


def use_products(layout: str | None, plain: tuple[str, ...] = ()) -> None:
    """Sets what `dense_linear` and `pack_weight` use from now on.

    Args:
        layout: of the layers' weights. What is read row by row too, such as a table, stays plain. None is the choice by
            the processor's flags.
        plain: for weights in the plain layout, the names of the ways for each of `ROWS`.
    """
    _chosen[:] = [] if layout is None else [ProductChoice(layout, plain)]


_chosen: list[ProductChoice] = []


def _choice() -> ProductChoice:
    return _chosen[0] if _chosen else _usual_choice()


def _usual_choice() -> ProductChoice:
    """The choice by the processor's flags."""
    if _has_bf16_units():
        return ProductChoice(PACKED, ("vector", "matrix", "matrix", "matrix"))
    return ProductChoice(PLAIN, ("matrix", "matrix", "tiles", "tiles"))


def _plain_way(place: int) -> str:
    return _choice().plain[place]


# To torch.compile a constant: what `torch.compiler.assume_constant_result` sets, which takes a second to import.
vars(_plain_way)["_dynamo_marked_constant"] = True


@cache
def _has_bf16_units() -> bool:
    found = getattr(torch.cpu, "get_capabilities", dict)()  # older builds of torch do not have it
    return any(found.get(unit, False) for unit in ("avx512_bf16", "amx_bf16", "bf16"))
