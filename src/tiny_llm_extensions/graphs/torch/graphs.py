"""Graphs: parts of a model compiled for its device, and whole steps that are captured once and replayed.

A part is compiled once for all layers: a layer's weights are inputs of the graph, and no part reads a number that
differs between layers. What is compiled, and what is captured:

| device | parts of a layer | the model's other parts | whole step |
|---|---|---|---|
| HPU | all three, by `hpu_backend` | masks, norm and head | |
| HPU in lazy mode | | | HPU graphs |
| CUDA | before and after attention, by Inductor | | CUDA graphs |
| CPU | before and after attention, by Inductor, with packed weights; attention of decodes | | |

What Inductor compiles takes any number of rows. The graphs of an HPU and captured steps have fixed shapes, so steps are
padded to buckets there. Nothing was run by us on an HPU.
"""

import os
import shutil
import sys
import sysconfig
from collections.abc import Callable
from copy import copy
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from tiny_llm_engine.arrays.torch import hpu
from tiny_llm_engine.arrays.windows import changed_layer, inner_layer

from ...kernels.torch.cpu_attention import attend_decodes_in_place, attend_packed
from ...kernels.torch.products import use_products
from ...kernels.torch.solution import TorchSolution

PARTS = {
    "hpu": ("project_in", "attention", "project_out"),
    "cuda": ("project_in", "project_out"),
    "cpu": ("project_in", "project_out"),
}
MODEL_PARTS = {"hpu": ("begin", "finish")}


def cannot_compile(device: str) -> str | None:
    """What is missing on this machine to compile for `device`, in one line; None if nothing is."""
    kind = device.partition(":")[0]
    if kind == "hpu":
        return None  # Intel's plug-in contains its compiler
    if kind == "cuda" and find_spec("triton") is None:
        return "torch.compile needs Triton on CUDA: install a build of torch that has it"
    if _compiler() is None:
        return "torch.compile needs a C++ compiler: install g++ (or clang++), or name yours in CXX"
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        return "torch.compile needs Python.h: install Python's development files (python3-dev)"
    return None


def _compiler() -> str | None:
    """The C++ compiler that Inductor would call."""
    usual = {"win32": ["cl"], "darwin": ["clang++"]}.get(sys.platform, ["g++", "clang++"])
    named = os.environ.get("CXX")
    return next(filter(None, map(shutil.which, [named] if named else usual)), None)


def fixed_sizes(device: str) -> tuple[str, ...]:
    """Which sizes of a step are fixed in the graphs for `device`, so that steps are padded to few of them.

    Returns:
        "tokens" for T and the sampled rows, "pages" for the pages that are read; nothing where a graph takes any size.
    """
    return () if device.startswith("cpu") else ("tokens", "pages")


def compile_model(solution: TorchSolution, model: Any, device: str, num_buckets: int) -> Any:
    """The model with its parts compiled; the first step of each shape compiles them.

    Args:
        model: `Qwen3ModelWeek3`. It shares its weights with the result, and still runs as it is written. On a CPU with
            bf16 units its layers' matrices are packed in place, one by one, so that memory never holds two copies.
        device: the device on which the model computes.
        num_buckets: number of shapes that will be compiled.
    """
    kind = device.partition(":")[0]
    if kind == "hpu" and hpu.detect().lazy:
        return model  # lazy mode has no torch.compile: `capture_step` captures the whole step
    if "compute" in vars(model):
        return model  # a step is one call already: there is nothing to fuse
    _allow_graphs(num_buckets)
    if kind == "cpu":
        use_products(solution, model)
    parts = {each: _compiled_parts(each, kind) for each in set(map(type, map(inner_layer, model.layers)))}
    made = copy(model)
    made.layers = [
        changed_layer(layer, lambda inner: _compiled_layer(inner, parts[type(inner)], kind))
        for layer in model.layers
    ]
    for name in MODEL_PARTS.get(kind, ()):
        setattr(made, name, partial(_compiled(getattr(type(model), name), kind), model))
    return made


def _compiled_parts(layer_class: type, kind: str) -> dict[str, Callable]:
    """The parts of a class of layers, each compiled when it is first called: not every layer calls all of them."""
    parts = {name: _compiled(getattr(layer_class, name), kind) for name in PARTS[kind]}
    if kind == "cpu":
        parts["decodes"] = _for_any_decodes(torch.compile(attend_decodes_in_place))
    return parts


def _parts_of(layer: Any, kind: str) -> tuple[str, ...]:
    """The names of these parts. Without the MLP where a mixture reads how many rows each expert has."""
    return PARTS[kind] if getattr(layer.mlp, "reads_no_count", True) else ("project_in",)


def _allow_graphs(num_buckets: int) -> None:
    """Raises the limits of Dynamo, past which it runs a function eagerly and says so only in a log."""
    limits = torch._dynamo.config
    limits.recompile_limit = max(limits.recompile_limit, 4 * num_buckets)
    limits.accumulated_recompile_limit = max(limits.accumulated_recompile_limit, 32 * num_buckets)


def _compiled(part: Callable, device: str) -> Callable:
    """A method of a layer or of the model, compiled; its first argument is the object."""
    if device == "hpu":
        return hpu.compile_static(part)
    # A packed weight of a CPU has no strides that could be asserted.
    return _for_any_rows(torch.compile(part, options={"size_asserts": device != "cpu"}))


def _for_any_rows(part: Callable) -> Callable:
    """One graph for one row, and one for any larger number T: axis 1 of x, and axis 0 of the other arrays."""

    def run(layer: Any, x: torch.Tensor, *others: torch.Tensor) -> Any:
        if x.shape[1] > 1:
            torch._dynamo.maybe_mark_dynamic(x, 1)
            for other in others:
                torch._dynamo.maybe_mark_dynamic(other, 0)
        return part(layer, x, *others)

    return run


def _for_any_decodes(attend: Callable) -> Callable:
    """One graph for any number of requests R and any length S: axis 0 of query, slots and mask, and axis 1 of both."""

    def run(query: torch.Tensor, *others: Any) -> torch.Tensor:
        *_, slots, mask, _ = others
        for array in (query, slots, mask):
            torch._dynamo.maybe_mark_dynamic(array, 0)
        for array in (slots, mask):
            torch._dynamo.maybe_mark_dynamic(array, 1)
        return attend(query, *others)

    return run


def _compiled_layer(layer: Any, parts: dict[str, Callable], device: str) -> Any:
    """A copy of the layer that calls the compiled parts."""
    made = copy(layer)
    for name in _parts_of(layer, device):
        setattr(made, name, partial(parts[name], layer))
    if device == "cpu" and layer.packed_attention is attend_packed:
        made.packed_attention = partial(attend_packed, decodes=parts["decodes"])
    return made


def capture_step(step: Callable, device: str, num_buckets: int) -> Callable:
    """A step that is captured on its first call of each shape, and replayed from then on; `step` itself on a CPU.

    All results of a shape are the same array, and shapes share memory: use or copy a result before the next call.

    Args:
        step: called with arrays and Nones, by position; returns an array. It may write into arrays that outlive it,
            and must not read any other array that is replaced between calls.
        num_buckets: number of shapes to capture; further shapes run without a graph.
    """
    kind = device.partition(":")[0]
    if kind == "hpu" and hpu.detect().lazy:
        return hpu.wrap_in_graph(step, num_buckets)
    return _CudaGraphs(step, num_buckets) if kind == "cuda" else step


class _CudaGraphs:
    """A step as CUDA graphs, one per shape of its inputs; they share one pool of memory.

    Args:
        step, num_buckets: see `capture_step`.
    """

    def __init__(self, step: Callable, num_buckets: int):
        self.step, self.num_buckets = step, num_buckets
        self._graphs: dict[tuple, tuple] = {}  # by the shapes of the inputs: inputs, graph, output
        self._memory: Any = None

    def __call__(self, *inputs: torch.Tensor | None) -> torch.Tensor | None:
        key = tuple(None if array is None else tuple(array.shape) for array in inputs)
        if key not in self._graphs:
            if len(self._graphs) == self.num_buckets:
                return self.step(*inputs)
            self._graphs[key] = self._capture(inputs)
        captured, graph, output = self._graphs[key]
        for array, new in zip(captured, inputs, strict=True):
            if array is not None:
                array.copy_(new)
        graph.replay()
        return output

    def _capture(self, inputs: tuple[torch.Tensor | None, ...]) -> tuple:
        """Runs the step on inputs of its own, then captures it. Nothing is computed while it is captured."""
        captured = [None if array is None else array.clone() for array in inputs]
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # compiles kernels, and lets libraries allocate what they keep
            self.step(*captured)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._memory):
            output = self.step(*captured)
        self._memory = graph.pool()
        return captured, graph, output
