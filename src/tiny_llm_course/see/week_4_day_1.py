"""The screen of Day 4.1: how fast each version of a product reads its weights.

Seconds are medians of interleaved runs, over more bytes than caches hold. Each kernel is measured in a process of its
own, so that one that crashes is named.
"""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

import numpy as np
from rich.console import Console
from rich.table import Table

from tiny_llm_engine.backends.samples import medians
from tiny_llm_engine.models.files import Json
from tiny_llm_engine.solutions.port import Port
from tiny_llm_engine.solutions.solution_types import Array
from tiny_llm_extensions.given import given_of
from tiny_llm_extensions.kernels.native.attention import KeptArray, run_arrays
from tiny_llm_extensions.kernels.native.kernel import available_threads, floats_of, of_numpy, packed_shape
from tiny_llm_extensions.kernels.native.read_memory import read_memory

from .own_process import in_own_process

SHOWN_ON = "torch"
OUTPUTS, COLUMNS = 3072, 1024  # of each matrix
BYTES = 2**27  # of the matrices of each version
ROWS = (1, 4, 16, 64)
ROUNDS = 5
GROUP = 64  # numbers that share a scale and a bias
REQUESTS, CONTEXT, HEADS, KV_HEADS, SIZE = 16, 2048, 16, 8, 128  # of the attention
NAMES = {
    "python": "a loop in Python",
    "library": "x @ W.T of the port",
    "lines": "bf16 in lines",
    "tiles": "bf16 in tiles",
    "bytes": "8 bits",
    "nibbles": "4 bits",
}
# Whole lines of the table, and figures of a line.
MEASURED = (rf"(?:{'|'.join(NAMES.values())})  .*", r"[\d.]+(?= (?:GB/s|%))")
# By version: bytes per second by rows, or one line that says why they are missing.
T = TypeVar("T")
Speeds = Json


def show(b: Port, console: Console) -> None:
    """The speed of memory, then of each version for some numbers of rows."""
    try:
        read = in_own_process(measure_memory, b)
    except RuntimeError as error:
        console.print(f"There is nothing to see here: {str(error).rpartition('Error: ')[2]}", soft_wrap=True)
        return
    console.print(f"Memory is read at {read / 1e9:.1f} GB/s here, by all threads of a kernel.\n")
    found: Speeds = {}
    for measure, names in MEASURES.items():
        found |= _measured(measure, names, b)
    _table(found, console)
    _attention(b, read, console)


def _measured(measure: Callable[[Port], Speeds], names: tuple[str, ...], b: Port) -> Speeds:
    """What a process measures; if it crashes, one line for each version."""
    try:
        return in_own_process(measure, b)
    except RuntimeError as error:
        return dict.fromkeys(names, f"it crashes, {error}: `pdm run test --week 4 --day 1` says where")


def _table(found: Speeds, console: Console) -> None:
    console.print(f"GB/s of weights, by rows of x; each W of {OUTPUTS:,} × {COLUMNS:,}\n")
    table = Table("", box=None, pad_edge=False)
    for rows in ROWS:
        table.add_column(str(rows), justify="right", width=9)  # as wide whatever is measured
    for name, speeds in found.items():
        if isinstance(speeds, str):
            console.print(f"{NAMES[name]}: {speeds}", soft_wrap=True)
        else:
            table.add_row(NAMES[name], *(f"{speeds[str(rows)] / 1e9:.3g}" for rows in ROWS))
    console.print(table)


def _attention(b: Port, read: float, console: Console) -> None:
    found = _measured(measure_attention, ("attention",), b)["attention"]
    if isinstance(found, str):
        console.print(f"\nattention: {found}", soft_wrap=True)
        return
    console.print(f"\nAttention of {REQUESTS} requests over {CONTEXT:,} tokens each reads keys and values")
    console.print(f"at {found / 1e9:.1f} GB/s, {100 * found / read:.0f} % of what memory gives.")


# What the processes measure.


def measure_memory(b: Port) -> float:
    """Bytes per second of reading."""
    array, read = np.ones(BYTES // 4, np.float32), read_memory
    run = partial(read, of_numpy(array), available_threads())
    return array.nbytes / medians({"read": run}, ROUNDS)["read"]


def measure_plain(b: Port) -> Speeds:
    """A loop in Python over a few outputs, and the port's own product."""
    few, row = _numbers(4, COLUMNS), _numbers(1, COLUMNS)
    python = _speeds(lambda rows: _loop(row.tolist() * rows, few.tolist()), 2 * few.size)
    count = BYTES // (2 * OUTPUTS * COLUMNS)
    w = [b.array(_numbers(OUTPUTS, COLUMNS), "bfloat16") for _ in range(count)]
    library = _speeds(partial(_multiply_all, b, w), 2 * count * OUTPUTS * COLUMNS)
    return {"python": python, "library": library}


def _loop(x: list[list[float]], w: list[list[float]]) -> list[list[float]]:
    return [[sum(a * c for a, c in zip(row, output, strict=True)) for output in w] for row in x]


def _multiply_all(b: Port, w: list[Array], rows: int) -> None:
    x = b.array(_numbers(rows, COLUMNS), "bfloat16")
    for matrix in w:
        b.backend_module.evaluate(x @ matrix.T)
    b.backend_module.synchronize(b.device)


def measure_products(b: Port) -> Speeds:
    """Lines and tiles of Tasks 1 and 2."""
    return {"lines": _tried(lambda: _product(b, False)), "tiles": _tried(lambda: _product(b, True))}


def measure_quantized(b: Port) -> Speeds:
    """8 and 4 bits by Task 3."""
    return {"bytes": _tried(lambda: _quantized(b, 8)), "nibbles": _tried(lambda: _quantized(b, 4))}


def measure_attention(b: Port) -> Speeds:
    """Bytes of keys and values per second by Task 4."""
    return {"attention": _tried(lambda: _attended(b))}


MEASURES: dict[Callable[[Port], Speeds], tuple[str, ...]] = {
    measure_plain: ("python", "library"),
    measure_products: ("lines", "tiles"),
    measure_quantized: ("bytes", "nibbles"),
}


def _tried(measure: Callable[[], T]) -> T | str:
    """What a version measures, or one line: a task is blank, a product wrong, a text does not compile."""
    try:
        return measure()
    except (NotImplementedError, ArithmeticError) as problem:
        return str(problem)
    except Exception as problem:  # NativeError of either solution
        if type(problem).__name__ not in ("NativeError", "CompileError"):
            raise
        return str(problem).splitlines()[0].rstrip(":")


def _product(b: Port, in_tiles: bool) -> Mapping[int, float]:
    product = given_of(b).kernels.product
    multiply = partial(product.multiply, threads=available_threads(), in_tiles=in_tiles)
    x, w, y = _numbers(5, 7), _numbers(70, 7), np.zeros((5, 70), np.float32)
    multiply(of_numpy(x), of_numpy(product.pack(w)), None, of_numpy(y))
    _check(y, x @ w.T)
    packed = _matrices(packed_shape(OUTPUTS, COLUMNS, "bfloat16"), np.uint16)
    given = [of_numpy(matrix, "bfloat16") for matrix in packed]

    def run(rows: int) -> None:
        row, out = (of_numpy(np.zeros((rows, size), np.uint16), "bfloat16") for size in (COLUMNS, OUTPUTS))
        for matrix in given:
            multiply(row, matrix, None, out)

    return _speeds(run, packed.nbytes)


def _quantized(b: Port, bits: int) -> Mapping[int, float]:
    product = given_of(b).kernels.quantized_product
    multiply = partial(product.multiply, group_size=GROUP, bits=bits, threads=available_threads())
    _check_quantized(product, of_numpy, multiply, bits)
    blocks, groups = OUTPUTS // 16, COLUMNS // GROUP
    packed = _matrices((blocks, COLUMNS * bits // 32, 16, 4), np.uint8)
    constants = _matrices((len(packed), blocks, groups, 2, 16), np.uint16, of_all=True)
    given = [(of_numpy(w), of_numpy(c, "bfloat16")) for w, c in zip(packed, constants, strict=True)]

    def run(rows: int) -> None:
        row, out = (of_numpy(np.zeros((rows, size), np.uint16), "bfloat16") for size in (COLUMNS, OUTPUTS))
        for w, c in given:
            multiply(row, w, c, None, out)

    return _speeds(run, packed.nbytes + constants.nbytes)


def _check_quantized(product: Any, of_numpy: Any, multiply: Any, bits: int) -> None:
    """A product of whole numbers, which rounding leaves alone."""
    x, y = np.full((9, GROUP), 127, np.float32), np.zeros((9, 20), np.float32)
    x[:, ::3] = -127
    q = (np.arange(20 * GROUP).reshape(20, -1) % 2**bits).astype(np.uint8)
    constants = product.pack_constants(np.ones((20, 1), np.float32), np.zeros((20, 1), np.float32))
    multiply(*map(of_numpy, (x, product.pack(q, bits), constants)), None, of_numpy(y))
    _check(y, x @ q.T)


def _attended(b: Port) -> float:
    numbers = _numbers(REQUESTS, HEADS, SIZE), _numbers(2, REQUESTS * CONTEXT, KV_HEADS, SIZE)
    query, pasts = ((each.view(np.uint32) >> 16).astype(np.uint16) for each in numbers)  # to bf16
    arrays = [of_numpy(each, "bfloat16") for each in (query, *pasts, np.zeros_like(query))]
    runs = run_arrays([[(row * CONTEXT, CONTEXT)] for row in range(REQUESTS)])
    given = arrays[0], *map(KeptArray, arrays[1:3]), arrays[3], *runs, SIZE**-0.5, available_threads()
    run = partial(given_of(b).kernels.decode_attention.attend, *given)
    run()
    keys, values = floats_of(pasts[:, :CONTEXT, 0])
    weights = np.exp(keys @ floats_of(query[0, 0]) * SIZE**-0.5)
    _check(floats_of(arrays[3].owner[0, 0]), weights / weights.sum() @ values)
    return pasts.nbytes / medians({"run": run}, ROUNDS)["run"]


def _speeds(run: Callable[[int], object], moved: int) -> Mapping[int, float]:
    """Bytes per second by rows, of a pass over some weights."""
    seconds = medians({rows: partial(run, rows) for rows in ROWS}, ROUNDS)
    return {rows: moved / each for rows, each in seconds.items()}


def _numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def _matrices(shape: tuple[int, ...], dtype: type, of_all: bool = False) -> np.ndarray:
    """Random bits for as many arrays of a shape as `BYTES` holds, or for one; those of a bf16 are numbers below 1."""
    one = math.prod(shape) * np.dtype(dtype).itemsize
    whole = shape if of_all else (BYTES // one, *shape)
    return np.random.default_rng(0).integers(0, 2**8 if dtype is np.uint8 else 2**14, whole, dtype)


def _check(actual: np.ndarray, expected: np.ndarray) -> None:
    if not np.allclose(actual, expected, rtol=0.02, atol=0.02):
        raise ArithmeticError("wrong: `pdm run test --week 4 --day 1` says where")
