"""Products with a matrix in bf16 on a CPU: the ways to compute them, and which one takes how many rows.

No way is the fastest on every processor: for one row `torch.mv` was 1.2 to 2 times faster than `F.linear` on one with
AMX, and 1.4 times slower on one with AVX-512 alone. So an engine measures them on its machine (`product_ways`), and
puts the fastest ones on its model (`use_products`), which runs without them too.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

import torch

from tiny_llm_engine.arrays.layers import DenseLinear, Linear, with_bias
from tiny_llm_engine.arrays.windows import inner_layer

from ..native.layer_fields import can_compute
from ..native.layers import use_native_step
from ..product_ways import (
    NATIVE,
    PACKED,
    PLAIN,
    ProductWay,
    by_layer,
    replace_matrices,
    replace_table,
    ways_of_quantized,
)
from .cpu_attention import step_reads
from .cpu_products import PackedLinear, PlainLinear, by_tiles, by_vector
from .large_pages import in_large_pages
from .native import ARRAYS, NativeMatrix
from .native_quantized import NativeQuantizedMatrix
from .solution import TorchSolution


def use_products(
    solution: TorchSolution, model: Any, layout: str | None = None, plain: Sequence[str] | None = None
) -> None:
    """Puts the chosen products on a loaded model: other layers instead of those with a plain bf16 matrix on a CPU.

    They are replaced one by one, so that memory never holds two copies of the model. Native weights can be looked up
    row by row, so the table and the head have this layout too; in the others they stay plain.

    Args:
        layout: of the layers' weights; None is the choice by the processor's flags.
        plain: for weights in the plain layout, the names of the ways for each of `ROWS`; None likewise.
    """
    usual_layout, usual_ways = _usual_choice()
    layout = layout or usual_layout
    ways = _all_ways(solution)
    by_rows = partial(PlainLinear, ways=tuple(ways[name].multiply for name in plain or usual_ways))
    native = partial(_native_linear, solution)
    make = {PLAIN: by_rows, PACKED: PackedLinear.of, NATIVE: native}[layout]
    for layer in map(inner_layer, model.layers):
        replace_matrices(layer, partial(_with_product, make=make))
    if layout == NATIVE:
        replace_table(solution, model, partial(NativeMatrix.of, kernel=solution.NATIVE.product), _has_ways)
    is_packed = layout == NATIVE and not model.config.tie_word_embeddings
    model.w_lm_head = _with_product(model.w_lm_head, make if is_packed else by_rows)


def _native_linear(solution: TorchSolution, w: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
    """A layer whose matrix is packed for the kernel of Day 4.1."""
    return with_bias(NativeMatrix.of(w, solution.NATIVE.product), bias)


def _with_product(w: Any, make: Callable[[torch.Tensor, torch.Tensor | None], Linear]) -> Any:
    """A linear layer with another product for its plain matrix; quantised weights have theirs already."""
    if isinstance(w, DenseLinear):
        return make(w.weight, w.bias) if _has_ways(w.weight) else w
    return replace(w, layer=_with_product(w.layer, make)) if hasattr(w, "layer") else w


def _has_ways(w: torch.Tensor) -> bool:
    return w.dtype == torch.bfloat16 and w.device.type == "cpu"


def use_native_layers(solution: TorchSolution, model: Any) -> None:
    """A step in one call, by the kernels of Day 4.1, where all products are."""
    if model.packed_mask is not step_reads:
        return  # other kernels than the device's were asked for
    if can_compute(model) and solution.NATIVE.layers.works:
        in_large_pages(map(inner_layer, model.layers))
    use_native_step(model, solution.NATIVE.layers, ARRAYS)


def _all_ways(solution: TorchSolution) -> dict[str, ProductWay]:
    native = partial(NativeMatrix.of, kernel=solution.NATIVE.product)
    return {
        "vector": ProductWay(PLAIN, lambda w: w, by_vector, most_rows=1),
        "matrix": ProductWay(PLAIN, lambda w: w, solution.linear),
        "tiles": ProductWay(PLAIN, lambda w: w, by_tiles),
        "onednn": ProductWay(PACKED, PackedLinear.of, by_layer),
        "native": ProductWay(NATIVE, native, by_layer),
    }


def product_ways(solution: TorchSolution) -> dict[str, ProductWay]:
    """The ways that this build of torch has on this processor, by name."""
    has = {PLAIN: lambda: True, PACKED: has_onednn, NATIVE: lambda: solution.NATIVE.product.works}
    return {name: way for name, way in _all_ways(solution).items() if has[way.layout]()}


def has_onednn() -> bool:
    """Whether oneDNN multiplies bf16 numbers here; not every build and processor does."""
    try:
        return torch.ops.mkldnn._is_mkldnn_bf16_supported()
    except AttributeError:
        return False


def quantized_ways(solution: TorchSolution) -> dict[str, ProductWay]:
    """The ways to multiply by `QuantizedWeights` on this machine's CPU, by name.

    "int8" and "int16" round activations to such integers, for the kernel of Day 4.1; "usual" is Day 2.3's.
    """
    kernel = solution.NATIVE.quantized_product
    packed = partial(NativeQuantizedMatrix.of, kernel=kernel) if kernel.works else None
    return ways_of_quantized(solution.prepare_weights, packed)


def _usual_choice() -> tuple[str, tuple[str, ...]]:
    """Layout and ways by the processor's flags."""
    if _has_bf16_units():
        return PACKED, ("vector", "matrix", "matrix", "matrix")
    return PLAIN, ("matrix", "matrix", "tiles", "tiles")


@cache
def _has_bf16_units() -> bool:
    found = getattr(torch.cpu, "get_capabilities", dict)()  # older builds of torch do not have it
    return any(found.get(unit, False) for unit in ("avx512_bf16", "amx_bf16", "bf16"))
