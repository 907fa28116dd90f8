"""Attention of a chunk of a prompt by `prompt_attention.cpp`: checks and the call."""

import ctypes
from functools import cache

import numpy as np

from .arrays import NativeArray, require
from .library import library

LINE = 16
KERNELS = {"bfloat16": "attend_chunk_bf16", "float32": "attend_chunk_float"}
MOST_SIZE = 256  # the kernel keeps so much of a head beside its sums


def attend(
    query: NativeArray,
    keys: NativeArray,
    values: NativeArray,
    slots: NativeArray,
    out: NativeArray,
    scale: float,
    window: int | None = None,
    threads: int = 1,
) -> None:
    """Writes the attention of the last L tokens of a text to `out`; each sees the tokens before it and itself.

    Args:
        query: (L, H, D), bf16 or float32; D is a multiple of 16, at most 256, and H of Hkv.
        keys, values: (S, Hkv, D), in query's type: all slots of the pool.
        slots: (N,), int64: where the tokens of the text are, those of the chunk last. They are not checked.
        out: (L, H, D), in query's type.
        scale: of the scores.
        window: how many tokens a token sees, itself included; None is all.
        threads: that share heads and tokens.

    Raises:
        ValueError: a shape or a type is wrong.
        NativeError: there is no such kernel on this machine.
    """
    rows, heads, size = query.shape
    pool, kv_heads, _ = keys.shape
    if heads % kv_heads or size % LINE or size > MOST_SIZE:
        raise ValueError(
            f"{heads} heads of {size} numbers over {kv_heads} heads of keys: the kernel takes sizes that are "
            f"multiples of {LINE} and at most {MOST_SIZE}, and as many heads for each head of keys"
        )
    require("query", query, (rows, heads, size), *KERNELS)
    for name, array in (("keys", keys), ("values", values)):
        require(name, array, (pool, kv_heads, size), query.dtype)
    require("out", out, (rows, heads, size), query.dtype)
    tokens = slots.shape[0]
    require("slots", slots, (max(tokens, rows),), "int64")
    packed = np.empty(
        (2, kv_heads, -(-tokens // LINE) * LINE, size), f"V{2 if query.dtype == 'bfloat16' else 4}"
    )
    scratch = packed.ctypes.data, packed.ctypes.data + packed.nbytes // 2
    addresses = (array.address for array in (query, keys, values, slots, out))
    sizes = rows, tokens, heads, kv_heads, size, window or 0
    _kernel(query.dtype)(*addresses, *scratch, *sizes, scale, threads)


@cache
def _kernel(dtype: str):
    kernel = getattr(library("prompt_attention.cpp"), KERNELS[dtype])
    kernel.argtypes = [ctypes.c_void_p] * 7 + [ctypes.c_int64] * 6 + [ctypes.c_float, ctypes.c_int]
    return kernel
