"""The given code of one port, bound to one solution: products, attention, graphs and ranks for its models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from tiny_llm_engine.arrays.layers import Array
from tiny_llm_engine.solutions.port import Port

if TYPE_CHECKING:  # it imports NumPy, and `--help` needs none of it
    from .kernels.native import NativeKernels


class Given:
    """What is put on a loaded model from outside, with a solution's parts; without it the same model runs, slower.

    Args:
        port: "mlx" or "torch".
        solution: the package of the port.
    """

    def __init__(self, port: str, solution: Any):
        def part(place: str, name: str) -> Any:
            return import_module(f".{place}.{port}.{name}", __package__)

        graphs, processes = part("graphs", "graphs"), part("parallel", "process_group")
        native, self._quantized = part("kernels", "native"), part("kernels", "native_quantized")
        self._packed, self._products = (part("kernels", name) for name in ("packed_kernels", "products"))
        self._graphs, self._native = graphs, native
        self.solution = solution
        self.kernels: NativeKernels = solution.NATIVE
        self.cannot_compile: Callable[[str], str | None] = graphs.cannot_compile
        self.capture_step: Callable[..., Any] = graphs.capture_step
        self.fixed_sizes: Callable[..., Any] = graphs.fixed_sizes
        self.Meeting: Callable[..., Any] = processes.Meeting
        self.host_pages: Callable[..., Any] = part("cold_blocks", "host_pages").HostPages
        self.join_launched: Callable[..., Any] = processes.join_launched
        self.launched: Callable[..., Any] = processes.launched

    def use_packed_kernels(self, model: Any) -> None:
        """See `packed_kernels.use_packed_kernels`."""
        self._packed.use_packed_kernels(self.solution, model)

    def why_no_texts(self, model: Any) -> str | None:
        """See `packed_kernels.why_no_texts` of the torch port."""
        return self._packed.why_no_texts(model)

    def use_products(self, model: Any, layout: str | None = None, plain: Sequence[str] | None = None) -> None:
        """See `products.use_products`."""
        self._products.use_products(self.solution, model, layout, plain)

    def use_native_layers(self, model: Any) -> None:
        """See `products.use_native_layers`."""
        self._products.use_native_layers(self.solution, model)

    def product_ways(self) -> dict[str, Any]:
        """See `products.product_ways`."""
        return self._products.product_ways(self.solution)

    def quantized_ways(self) -> dict[str, Any]:
        """See `products.quantized_ways`."""
        return self._products.quantized_ways(self.solution)

    def compile_model(self, model: Any, device: str, num_buckets: int) -> Any:
        """See `graphs.compile_model`."""
        return self._graphs.compile_model(self.solution, model, device, num_buckets)

    def native_matrix(self, w: Array) -> Any:
        """A matrix (O, I) packed for the kernel of Day 4.1."""
        return self._native.NativeMatrix.of(w, self.kernels.product)

    def native_quantized(self, w: Any, x_bits: int = 8) -> Any:
        """`QuantizedWeights` packed for the kernel of Day 4.1."""
        return self._quantized.NativeQuantizedMatrix.of(w, self.kernels.quantized_product, x_bits)


def given_of(port: Port) -> Given:
    """What is put on models of a port."""
    if port not in _GIVEN:
        _GIVEN[port] = Given(port.name, port.solution)
    return _GIVEN[port]


_GIVEN: WeakKeyDictionary[Port, Given] = WeakKeyDictionary()
