"""The given code of this port, bound to one solution: products, attention, graphs and ranks for its models."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from . import graphs, packed_kernels, page_attention, process_group, products
from .native import NativeMatrix
from .native_attention import DecodeRuns, Runs, attend_runs, decode_runs
from .native_quantized import NativeQuantizedMatrix
from .solution import TorchSolution


class Given:
    """What is put on a loaded model from outside, with a solution's parts; without it the same model runs, slower.

    Args:
        solution: the package of the port.
    """

    attend_runs = staticmethod(attend_runs)
    cannot_compile = staticmethod(graphs.cannot_compile)
    capture_step = staticmethod(graphs.capture_step)
    fixed_sizes = staticmethod(graphs.fixed_sizes)
    Meeting = process_group.Meeting
    join_launched = staticmethod(process_group.join_launched)
    launched = staticmethod(process_group.launched)

    def __init__(self, solution: TorchSolution):
        self.solution, self.kernels = solution, solution.NATIVE

    def use_packed_kernels(self, model: Any) -> None:
        """See `packed_kernels.use_packed_kernels`."""
        packed_kernels.use_packed_kernels(self.solution, model)

    def use_products(self, model: Any, layout: str | None = None, plain: Sequence[str] | None = None) -> None:
        """See `products.use_products`."""
        products.use_products(self.solution, model, layout, plain)

    def use_native_layers(self, model: Any, chunk_kernel: bool = True) -> None:
        """See `products.use_native_layers`."""
        products.use_native_layers(self.solution, model, chunk_kernel)

    def product_ways(self) -> dict[str, products.ProductWay]:
        """See `products.product_ways`."""
        return products.product_ways(self.solution)

    def quantized_ways(self) -> dict[str, products.ProductWay]:
        """See `products.quantized_ways`."""
        return products.quantized_ways(self.solution)

    def chunk_ways(self) -> dict[str, Callable[..., torch.Tensor]]:
        """See `page_attention.chunk_ways`."""
        return page_attention.chunk_ways(self.kernels.decode_attention)

    def compile_model(self, model: Any, device: str, num_buckets: int) -> Any:
        """See `graphs.compile_model`."""
        return graphs.compile_model(self.solution, model, device, num_buckets)

    def native_matrix(self, w: torch.Tensor) -> NativeMatrix:
        """A matrix (O, I) packed for the kernel of Day 4.1."""
        return NativeMatrix.of(w, self.kernels.product)

    def native_quantized(self, w: Any, planes: int = 1) -> NativeQuantizedMatrix:
        """`QuantizedWeights` packed for the kernel of Day 4.1."""
        return NativeQuantizedMatrix.of(w, self.kernels.quantized_product, planes)

    def decode_runs(self, texts: dict[int, Runs], slots: torch.Tensor) -> DecodeRuns | None:
        """See `native_attention.decode_runs`."""
        return decode_runs(texts, slots, self.kernels.decode_attention)
