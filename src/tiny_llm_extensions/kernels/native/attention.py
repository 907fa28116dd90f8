"""Attention by `decode_attention.cpp`: what it reads, checks and the call."""

from array import array
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, chain
from typing import NamedTuple

import numpy as np

from .kernel import FLOAT, NUMBER, POINTER, SIZE, Kernel, NativeArray, of_numpy, require

TYPES = ("bfloat16", "float32")  # of queries
# Flags of the compiler, by the type in which pages keep keys and values; none for the queries' type. e4m3 is uint8.
Runs = list[tuple[int, int]]  # of neighbouring slots: the first one, and how many
RunArrays = tuple[NativeArray, NativeArray, NativeArray]  # starts, counts and runs of `DecodeKernel.attend`
KEPT: dict[str, tuple[str, ...]] = {"int8": ("-DKEPT=INT8",), "uint8": ("-DKEPT=E4M3",)}
TOKENS = 32  # of which the packed keys of prompts have a multiple
MOST_QUERIES, MOST_SIZE = 16, 256  # the kernel keeps so much of a head beside its sums


def fits(heads: int, kv_heads: int, size: int) -> bool:
    """Whether the kernel of decodes can compute heads of this number and size."""
    return (
        heads % kv_heads == 0 and heads // kv_heads <= MOST_QUERIES and size % 16 == 0 and size <= MOST_SIZE
    )


class KeptArray(NamedTuple):
    """The keys or the values of all slots of a pool, as pages keep them.

    Args:
        numbers: (S, Hkv, D), in the queries' type, int8, or e4m3 as uint8.
        scales: (S, Hkv) bf16, what numbers in int8 are multiplied by; else None.
    """

    numbers: NativeArray
    scales: NativeArray | None = None

    @property
    def addresses(self) -> tuple[int, int | None]:
        """As the kernels take them."""
        return self.numbers.address, None if self.scales is None else self.scales.address

    def check(self, name: str, shape: tuple[int, ...], *dtypes: str) -> None:
        """Raises ValueError unless they have this shape and one of these types, with scales if it is int8."""
        require(name, self.numbers, shape, *dtypes)
        if self.numbers.dtype == "int8":
            if self.scales is None:
                raise ValueError(f"{name} are int8: give their scales as well")
            require(f"scales of {name}", self.scales, shape[:2], "bfloat16")


class DecodeKernel(Kernel):
    """`decode_attention.cpp` of a solution."""

    file, tasks = "decode_attention.cpp", {4: "attend_tokens"}

    def attend(
        self,
        query: NativeArray,
        keys: KeptArray,
        values: KeptArray,
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
            keys, values: (S, Hkv, D): all slots of the pool.
            out: (R, H, D), in query's type.
            starts, counts: (N,), int64: of N runs of neighbouring slots, the first one and how many. They are
                not checked.
            runs: (R + 1,), int64: row r reads the runs from `runs[r]` to `runs[r + 1] - 1`, at least one.
            scale: factor of the scores, usually 1 / √D.
            threads: how many share the rows and heads.

        Raises:
            ValueError: a shape or a type is wrong.
            NativeError: there is no such kernel on this machine.
            NotImplementedError: a task of Day 4.1 is blank.
        """
        rows, heads, size = query.shape
        slots, kv_heads, _ = keys.numbers.shape
        if not fits(heads, kv_heads, size):
            raise ValueError(
                f"{heads} heads of {size} numbers over {kv_heads} heads of keys: the kernel has no room for them"
            )
        require("query", query, (rows, heads, size), *TYPES)
        keys.check("keys", (slots, kv_heads, size), query.dtype, *KEPT)
        values.check("values", (slots, kv_heads, size), keys.numbers.dtype)
        require("out", out, (rows, heads, size), query.dtype)
        for name, each in (("starts", starts), ("counts", counts)):
            require(name, each, starts.shape, "int64")
        require("runs", runs, (rows + 1,), "int64")
        addresses = (each.address for each in (out, starts, counts, runs))
        read = query.address, *keys.addresses, *values.addresses
        kernel = self.kernel_of(keys.numbers.dtype)
        how = scale, query.dtype == "bfloat16", threads
        self.check(kernel(*read, *addresses, rows, heads, kv_heads, size, *how))

    def kernel_of(self, kept: str) -> Callable[..., int]:
        """The function for pages that keep numbers of this type; see `KEPT`."""
        if kept not in self._functions:
            types = [POINTER] * 9 + [SIZE] * 4 + [FLOAT] + [NUMBER] * 2
            self._functions[kept] = self.function("attend_decodes", types, KEPT.get(kept, ()))
        return self._functions[kept]

    def try_out(self) -> None:
        """See `Kernel`: one row and one token."""
        query, keys, out = (of_numpy(np.zeros((1, 1, 16), np.float32)) for _ in range(3))
        starts, counts, runs = (of_numpy(np.array(numbers, np.int64)) for numbers in ([0], [1], [0, 1]))
        self.attend(query, KeptArray(keys), KeptArray(keys), out, starts, counts, runs, 1.0)


def run_arrays(runs: Sequence[Runs]) -> RunArrays:
    """Starts, counts and the first run of each row, see `DecodeKernel.attend`."""
    starts, counts = zip(*chain(*runs), strict=True) if any(runs) else ((), ())
    return _integers(starts), _integers(counts), _integers(accumulate(map(len, runs), initial=0))


def _integers(numbers: Iterable[int]) -> NativeArray:
    """(N,) int64."""
    listed = array("q", numbers)
    address, count = listed.buffer_info()
    return NativeArray(address, (count,), "int64", listed)
