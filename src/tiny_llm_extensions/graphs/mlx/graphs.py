"""Graphs: parts of a model compiled for its device.

`mx.compile` traces a function once per set of shapes and fuses its element-wise operations into kernels. All layers
share the kernels. Metal compiles them on a GPU, g++ on a CPU, where MLX keeps them in the folder for temporary files.
The parts of a layer before and after attention are compiled; attention writes into the pages, which a compiled function
may not. Only the CPU's kernels were run by us. A layer whose products are kernels of Day 4.1 is not compiled: they read
numbers, and a trace has none.
"""

import shutil
from collections.abc import Callable
from copy import copy
from typing import Any

import mlx.core as mx

from tiny_llm_engine.arrays.layers import matrix_and_bias
from tiny_llm_engine.arrays.windows import changed_layer

from ...kernels.mlx.products import has_kernels, matrices_of
from ...kernels.mlx.solution import MlxSolution

PARTS = ("project_in", "project_out")


def cannot_compile(device: str) -> str | None:
    """What is missing on this machine to compile for `device`, in one line; None if nothing is."""
    if device == "cpu" and shutil.which("g++") is None:
        return "mx.compile needs g++ on a CPU: install it"
    return None


def fixed_sizes(device: str) -> tuple[str, ...]:
    """Which sizes of a step are fixed in the graphs for `device`, so that steps are padded to few of them.

    Returns:
        "tokens" for T and the sampled rows, "pages" for the pages that are read; nothing where a graph takes any size.
    """
    return ("tokens",)


def compile_model(solution: MlxSolution, model: Any, device: str, num_buckets: int) -> Any:
    """The model with its parts compiled; the first step of each shape compiles them.

    Args:
        model: `Qwen3ModelWeek3`. It stays as it is; its weights are shared.
        device: the device on which the model computes.
        num_buckets: number of shapes that will be compiled. MLX has no limit.
    """
    made = copy(model)
    made.layers = [changed_layer(layer, _compiled_layer) for layer in model.layers]
    return made


def _compiled_layer(layer: Any) -> Any:
    """A copy of the layer that calls the compiled parts; the layer itself where a trace is not possible."""
    if has_kernels(layer) or any(map(evaluates_tiles, matrices_of(layer))):
        return layer
    made = copy(layer)
    for name in _parts_of(layer):
        setattr(made, name, mx.compile(getattr(layer, name)))
    return made


def evaluates_tiles(w: Any) -> bool:
    """Whether a linear layer evaluates parts of its product, which a trace may not."""
    return getattr(matrix_and_bias(w)[0], "evaluates_tiles", False)


def _parts_of(layer: Any) -> tuple[str, ...]:
    """The parts that are compiled: a mixture that reads how many rows each expert has cannot be traced."""
    return PARTS if getattr(layer.mlp, "reads_no_count", True) else ("project_in",)


def capture_step(step: Callable, device: str, num_buckets: int) -> Callable:
    """`step` itself: MLX has no graphs to capture. Every step is a graph already, which MLX builds anew.

    Args:
        step: called with arrays and Nones, by position; returns an array.
        num_buckets: number of shapes.
    """
    return step
