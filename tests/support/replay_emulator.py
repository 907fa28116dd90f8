"""Emulates captured graphs (HPU graphs, CUDA graphs) on a CPU, with the mistakes that only they show.

A captured graph is a list of operations and of the arrays that they read and write. A replay runs this list again, on
the same arrays; no line of Python runs. So inputs must be copied into those arrays, results are always in the same
arrays, and everything that Python decided or read during the capture is frozen. Knows the rules from the public sources
of Gaudi's plug-in and from PyTorch's documents. PyTorch only: MLX has no such graphs.
"""

from collections.abc import Callable
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from tiny_llm_course.recorded_operations import HOST_READS


class RecordedGraph(TorchDispatchMode):
    """A context that records the operations that run in it; `replay` runs them again on the same arrays.

    Raises:
        RuntimeError: Python reads a number of an array in the context, which a device cannot replay.
    """

    def __init__(self):
        super().__init__()
        self._calls: list[tuple[Any, tuple, dict, list[torch.Tensor]]] = []

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        if operation._schema.name in HOST_READS:
            raise RuntimeError(f"{operation._schema.name}: the host reads a number while a graph is captured")
        kwargs = kwargs or {}
        result = operation(*args, **kwargs)
        made = arrays_of(result)
        known = {array.untyped_storage().data_ptr() for array in arrays_of((args, kwargs))}
        # A view needs no work: writing the array writes the view. What is written in place is written again.
        is_view = all(array.untyped_storage().data_ptr() in known for array in made)
        if operation._schema.is_mutable or not is_view:
            self._calls.append((operation, args, kwargs, [] if operation._schema.is_mutable else made))
        return result

    def replay(self) -> None:
        """Run the operations again; their results take the place of those of the capture."""
        for operation, args, kwargs, made in self._calls:
            result = operation(*args, **kwargs)
            for array, new in zip(made, arrays_of(result) if made else [], strict=True):
                array.copy_(new)


class FakeCuda:
    """`torch.cuda` as far as a capture needs it, with graphs that are recorded on the CPU."""

    def __init__(self):
        self.memory: list = []

    class CUDAGraph:
        def __init__(self):
            self.recorded = RecordedGraph()

        def replay(self):
            self.recorded.replay()

        def pool(self):
            return "pool"

    @contextmanager
    def graph(self, graph, pool=None):
        self.memory.append(pool)
        with graph.recorded:
            yield

    def current_stream(self):
        return SimpleNamespace(wait_stream=lambda other: None)

    Stream = current_stream

    @contextmanager
    def stream(self, stream):
        yield

    @classmethod
    def put_on(cls, monkeypatch) -> "FakeCuda":
        """Takes the place of `torch.cuda` for a test."""
        fake = cls()
        for name in ("CUDAGraph", "graph", "current_stream", "stream", "Stream"):
            monkeypatch.setattr(torch.cuda, name, getattr(fake, name))
        return fake


class ReplayEmulator:
    """A function as `wrap_in_hpu_graph` makes it: captured on its first call with a key, replayed from then on.

    Results of all keys are filled with NaN before every call, so that a result kept without a copy is noticed.

    Args:
        function: takes arrays and other values.
    """

    def __init__(self, function: Callable):
        self.function = function
        self.graphs: dict[Any, tuple[list[torch.Tensor], RecordedGraph, Any]] = {}

    def __call__(self, *inputs: Any) -> Any:
        key = key_of(inputs)
        for *_, result in self.graphs.values():
            for array in arrays_of(result):
                array.fill_(torch.nan if array.is_floating_point() else -1)
        if key not in self.graphs:
            self.graphs[key] = self._capture(inputs)
        captured, graph, result = self.graphs[key]
        for array, new in zip(captured, arrays_of(inputs), strict=True):
            array.copy_(new)
        graph.replay()
        return result

    def _capture(self, inputs: tuple) -> tuple[list[torch.Tensor], RecordedGraph, Any]:
        own = tree_map_only(torch.Tensor, torch.clone, inputs)
        with RecordedGraph() as graph:
            result = self.function(*own)
        return arrays_of(own), graph, result


def arrays_of(part: Any) -> list[torch.Tensor]:
    """All arrays in nested tuples, lists and dictionaries."""
    return [leaf for leaf in tree_leaves(part) if isinstance(leaf, torch.Tensor)]


def key_of(part: Any) -> Any:
    """What the plug-in's `input_hash` sees: shape and layout of an array, not its type; other values by value."""
    if isinstance(part, torch.Tensor):
        return tuple(part.shape), part.stride()
    if isinstance(part, dict):
        return tuple((name, key_of(value)) for name, value in part.items())
    return tuple(map(key_of, part)) if isinstance(part, list | tuple) else part
