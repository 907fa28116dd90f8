"""What a layer computes between its products, by `between_products.cpp`: checks and the calls."""

import ctypes
from functools import cache

from .kernel import NativeArray, require
from .library import library

SUFFIXES = {"bfloat16": "bf16", "float32": "float"}
# Pointers and sizes of each, and whether it has an epsilon.
KERNELS = {"normalize": (3, 2, True), "split_heads": (8, 5, True), "gate": (2, 2, False)}


def normalize(x: NativeArray, weight: NativeArray, y: NativeArray, eps: float, threads: int = 1) -> None:
    """Writes x / √(mean(x²) + eps) · weight to y, of each row.

    Args:
        x: (R, E), bf16 or float32.
        weight: (E,), in x's type.
        y: (R, E), in x's type.
        eps: a small number.
        threads: how many share the rows.

    Raises:
        ValueError: a shape or a type is wrong.
        NativeError: there is no such kernel on this machine.
    """
    rows, size = x.shape
    require("x", x, (rows, size), *SUFFIXES)
    require("weight", weight, (size,), x.dtype)
    require("y", y, (rows, size), x.dtype)
    _kernel("normalize", x.dtype)(x.address, weight.address, y.address, rows, size, eps, threads)


def split_heads(
    x: NativeArray,
    query_weight: NativeArray | None,
    key_weight: NativeArray | None,
    cosines: NativeArray,
    sines: NativeArray,
    query: NativeArray,
    key: NativeArray,
    value: NativeArray,
    eps: float,
    threads: int = 1,
) -> None:
    """Queries, keys and values of each row, from one product: RMSNorm of each head and RoPE, and a copy of the values.

    RoPE turns the pairs (i, i + D / 2) of a head.

    Args:
        x: (R, (H + 2 · Hkv) · D), bf16 or float32: queries, then keys, then values. D is a multiple of 32.
        query_weight, key_weight: (D,), in x's type; None does not normalise.
        cosines, sines: (R, at least D / 2), float32.
        query: (R, H, D), in x's type; written.
        key, value: (R, Hkv, D), in x's type; written.
        eps: the epsilon of the norm.
        threads: how many share the rows.

    Raises:
        ValueError: a shape or a type is wrong.
        NativeError: there is no such kernel on this machine.
    """
    rows, heads, size = query.shape
    kv_heads, stride = key.shape[1], cosines.shape[-1]
    if size % 32 or stride < size // 2:
        raise ValueError(f"heads of {size} numbers with {stride} angles: the kernel takes a multiple of 32")
    require("x", x, (rows, (heads + 2 * kv_heads) * size), *SUFFIXES)
    require("query", query, (rows, heads, size), x.dtype)
    for name, array in (("key", key), ("value", value)):
        require(name, array, (rows, kv_heads, size), x.dtype)
    for name, array in (("cosines", cosines), ("sines", sines)):
        require(name, array, (rows, stride), "float32")
    for weight in filter(None, (query_weight, key_weight)):
        require("weight", weight, (size,), x.dtype)
    arrays = x, query_weight, key_weight, cosines, sines, query, key, value
    addresses = [None if array is None else array.address for array in arrays]
    _kernel("split_heads", x.dtype)(*addresses, rows, heads, kv_heads, size, stride, eps, threads)


def gate(x: NativeArray, y: NativeArray, threads: int = 1) -> None:
    """Writes silu(gate) · up to y.

    Args:
        x: (R, 2 · F), bf16 or float32: of each row all gates, then all ups.
        y: (R, F), in x's type.
        threads: how many share the rows.

    Raises:
        ValueError: a shape or a type is wrong.
        NativeError: there is no such kernel on this machine.
    """
    rows, size = y.shape
    require("x", x, (rows, 2 * size), *SUFFIXES)
    require("y", y, (rows, size), x.dtype)
    _kernel("gate", x.dtype)(x.address, y.address, rows, size, threads)


@cache
def _kernel(name: str, dtype: str):
    pointers, sizes, has_eps = KERNELS[name]
    kernel = getattr(library("between_products.cpp"), f"{name}_{SUFFIXES[dtype]}")
    numbers = [ctypes.c_int64] * sizes + [ctypes.c_float] * has_eps + [ctypes.c_int]
    kernel.argtypes = [ctypes.c_void_p] * pointers + numbers
    return kernel
