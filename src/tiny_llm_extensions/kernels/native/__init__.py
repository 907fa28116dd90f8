"""The kernels in C++ as Python calls them: by addresses, with every shape and type checked first.

A solution has the files of Day 4.1: `product.cpp`, `quantized_product.cpp` and `decode_attention.cpp`. The others, and
the headers, are given and stand here; `layers.cpp` is made of all of them. Attention of chunks is given, and so are
products of many rows where these are rounded to 16 bits.
"""

import sys
from functools import cached_property

from .attention import DecodeKernel
from .kernel import ProductKernel, one_line
from .layers import LayersKernel
from .library import NativeError
from .quantized_product import QuantizedKernel


class NativeKernels:
    """The kernels of Day 4.1 of one solution.

    Args:
        package: that has their files, for example "tiny_llm.native".
    """

    def __init__(self, package: str):
        self.package = package

    @cached_property
    def product(self) -> ProductKernel:
        """Products with bf16 and float32 matrices."""
        return ProductKernel(self.package)

    @cached_property
    def quantized_product(self) -> QuantizedKernel:
        """Products with 4- and 8-bit matrices."""
        return QuantizedKernel(self.package)

    @cached_property
    def decode_attention(self) -> DecodeKernel:
        """Attention of decodes."""
        return DecodeKernel(self.package)

    @cached_property
    def layers(self) -> LayersKernel:
        """All layers of a step, by the three others."""
        return LayersKernel(self.package, (self.product, self.quantized_product, self.decode_attention))

    def prepare(self, kv_cache_dtype: str) -> None:
        """Compiles what reads pages in eight bits now, where kernels work: otherwise the first requests would wait.

        If it does not compile for them, it is not used by this process, as without a compiler; a line says so.

        Args:
            kv_cache_dtype: "int8" or "fp8_e4m3".
        """
        layers = self.layers
        try:
            if layers.works:
                layers.compute_of("int8" if kv_cache_dtype == "int8" else "uint8")
        except NativeError as error:
            layers.problem = one_line(error)
            print(
                f"{layers.file} is not used, for its pages in eight bits: {layers.problem}", file=sys.stderr
            )
