"""Attention by kernels, `decode_attention.cpp` and `prompt_attention.cpp`: what they read, checks and the calls."""

from functools import cache, cached_property

import numpy as np

from .kernel import FLOAT, NUMBER, POINTER, SIZE, Kernel, NativeArray, of_numpy, require
from .library import library

DECODES = {"bfloat16": "attend_decodes_bf16", "float32": "attend_decodes_float"}
CHUNKS = {"bfloat16": "attend_chunk_bf16", "float32": "attend_chunk_float"}
LINE = 16  # keys of a block, of prompts
MOST_QUERIES, MOST_SIZE = 16, 256  # the kernel keeps so much of a head beside its sums


def fits(heads: int, kv_heads: int, size: int) -> bool:
    """Whether the kernel of decodes can compute heads of this number and size."""
    return (
        heads % kv_heads == 0 and heads // kv_heads <= MOST_QUERIES and size % 16 == 0 and size <= MOST_SIZE
    )


class DecodeKernel(Kernel):
    """`decode_attention.cpp` of a solution."""

    file, tasks = "decode_attention.cpp", {4: "attend_tokens"}

    def attend(
        self,
        query: NativeArray,
        keys: NativeArray,
        values: NativeArray,
        out: NativeArray,
        starts: NativeArray,
        counts: NativeArray,
        runs: NativeArray,
        scale: float,
        threads: int = 1,
    ) -> None:
        """Writes the attention of R rows, each over its own text, to `out`.

        Args:
            query: (R, H, D), bf16 or float32.
            keys, values: (S, Hkv, D), in query's type: all slots of the pool.
            out: (R, H, D), in query's type.
            starts, counts: (N,), int64: of N runs of neighbouring slots, the first one and how many. They are
                not checked.
            runs: (R + 1,), int64: row r reads the runs from `runs[r]` to `runs[r + 1] - 1`, at least one.
            scale: of the scores.
            threads: that share the rows and heads.

        Raises:
            ValueError: a shape or a type is wrong.
            NativeError: there is no such kernel on this machine.
            NotImplementedError: a task of Day 4.1 is blank.
        """
        rows, heads, size = query.shape
        slots, kv_heads, _ = keys.shape
        if not fits(heads, kv_heads, size):
            raise ValueError(
                f"{heads} heads of {size} numbers over {kv_heads} heads of keys: the kernel has no room for them"
            )
        require("query", query, (rows, heads, size), *DECODES)
        for name, array in (("keys", keys), ("values", values)):
            require(name, array, (slots, kv_heads, size), query.dtype)
        require("out", out, (rows, heads, size), query.dtype)
        for name, array in (("starts", starts), ("counts", counts)):
            require(name, array, starts.shape, "int64")
        require("runs", runs, (rows + 1,), "int64")
        arrays = query, keys, values, out, starts, counts, runs
        addresses = (array.address for array in arrays)
        kernel = self._functions[query.dtype]
        self.check(kernel(*addresses, rows, heads, kv_heads, size, scale, threads))

    @cached_property
    def _functions(self):
        types = [POINTER] * 7 + [SIZE] * 4 + [FLOAT, NUMBER]
        return {dtype: self.function(name, types) for dtype, name in DECODES.items()}

    def try_out(self) -> None:
        """See `Kernel`: one row and one token."""
        query, keys, out = (of_numpy(np.zeros((1, 1, 16), np.float32)) for _ in range(3))
        starts, counts, runs = (of_numpy(np.array(numbers, np.int64)) for numbers in ([0], [1], [0, 1]))
        self.attend(query, keys, keys, out, starts, counts, runs, 1.0)


def attend_prompt(
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
    require("query", query, (rows, heads, size), *CHUNKS)
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
    kernel = getattr(library("prompt_attention.cpp"), CHUNKS[dtype])
    kernel.argtypes = [POINTER] * 7 + [SIZE] * 6 + [FLOAT, NUMBER]
    return kernel
