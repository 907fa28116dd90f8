"""Products with a matrix in bf16 or float32 on a CPU: MLX's own, and the kernel of Day 4.1.

On a Linux CPU, MLX's product took 7 to 11 times longer in bf16, and 1.5 to 2 times in float32. So an engine measures
both on its machine (`product_ways`), and puts the faster one on its model (`use_products`), which runs without it too.
On a GPU it is MLX's.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import mlx.core as mx

from tiny_llm_engine.arrays.layers import DenseLinear, with_bias
from tiny_llm_engine.arrays.windows import inner_layer

from ..kernel_matrix import is_native
from ..native.layers import use_native_step
from ..product_ways import (
    NATIVE,
    OF_ATTENTION,
    OF_MLP,
    PLAIN,
    ProductWay,
    by_layer,
    replace_matrices,
    replace_table,
    ways_of_quantized,
)
from .cpu_attention import step_reads
from .native import ARRAYS, NativeMatrix
from .native_quantized import NativeQuantizedMatrix
from .solution import MlxSolution


def use_products(
    solution: MlxSolution, model: Any, layout: str | None = None, plain: Sequence[str] | None = None
) -> None:
    """Puts the chosen product on a loaded model: other layers instead of those with a plain matrix.

    They are replaced one by one, so that memory never holds two copies of the model. Native weights can be looked up
    row by row, so the table and the head have this layout too.

    Args:
        layout: of the layers' weights; None is the plain one.
        plain: for weights in the plain layout, the names of the ways; MLX has one.
    """
    if layout != NATIVE:
        return
    native = partial(_native, solution)
    for layer in map(inner_layer, model.layers):
        replace_matrices(layer, native)
    replace_table(solution, model, partial(NativeMatrix.of, kernel=solution.NATIVE.product))
    if not model.config.tie_word_embeddings:
        model.w_lm_head = native(model.w_lm_head)


def _native(solution: MlxSolution, w: Any) -> Any:
    """A linear layer with its plain matrix packed for the kernel; quantised weights have their layout already."""
    if isinstance(w, DenseLinear):
        return with_bias(NativeMatrix.of(w.weight, solution.NATIVE.product), w.bias)
    return replace(w, layer=_native(solution, w.layer)) if hasattr(w, "layer") else w


def product_ways(solution: MlxSolution) -> dict[str, ProductWay]:
    """The ways that MLX has on this processor, by name; on a GPU there is one, and nothing to choose."""
    kernel = solution.NATIVE.product
    if mx.default_device() != mx.Device(mx.cpu) or not kernel.works:
        return {}
    return {
        "matrix": ProductWay(PLAIN, lambda w: w, solution.linear),
        "native": ProductWay(NATIVE, partial(NativeMatrix.of, kernel=kernel), by_layer),
    }


def quantized_ways(solution: MlxSolution) -> dict[str, ProductWay]:
    """The ways to multiply by `QuantizedWeights` on this machine's CPU, by name.

    "int8" and "int16" round activations to such integers, for the kernel of Day 4.1; "usual" is Day 2.3's.
    """
    kernel = solution.NATIVE.quantized_product
    works = mx.default_device() == mx.Device(mx.cpu) and kernel.works
    packed = partial(NativeQuantizedMatrix.of, kernel=kernel) if works else None
    return ways_of_quantized(solution.prepare_weights, packed)


def use_native_layers(solution: MlxSolution, model: Any) -> None:
    """A step in one call, by the kernels of Day 4.1, where all products are."""
    if model.packed_mask is step_reads:  # no other kernels than the device's were asked for
        use_native_step(model, solution.NATIVE.layers, ARRAYS)


def has_kernels(layer: Any) -> bool:
    """Whether a matrix of the layer is packed for a kernel of Day 4.1."""
    return any(map(is_native, matrices_of(layer)))


def matrices_of(layer: Any) -> list[Any]:
    """The linear layers of a layer, without those of experts."""
    matrices = [getattr(layer, name) for name in OF_ATTENTION]
    return matrices + [getattr(layer.mlp, name) for name in OF_MLP if not hasattr(layer.mlp, "pack")]
