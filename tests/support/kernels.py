"""The kernels of Day 4.1 on NumPy arrays: in a child process, with guards on both sides of every array.

In memory an array is followed by NaN, and an output's neighbours must stay what they are: whoever reads or writes
outside of an array is found even where nothing crashes.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np

from tiny_llm_extensions.kernels.native import library
from tiny_llm_extensions.kernels.native.attention import KeptArray
from tiny_llm_extensions.kernels.native.kernel import of_numpy

from .child import Endless, in_child

GUARD = 1023  # numbers on each side; odd, so that an array is aligned to the size of a number and no more
POISON = {"float32": np.nan, "uint16": 0x7FC0, "uint8": 127, "int64": -1}
Array = np.ndarray
# Texts that do not compile, or whose kernel does not end, with what was said about them: it is said in full once.
_broken: dict[str, Exception] = {}


def in_child_of(solution: Any, name: str, work: Callable[[Any], list[Array]]) -> list[Array]:
    """What `work` returns in a child process, of a kernel of the solution that is compiled.

    Args:
        solution: the fixture `b` or `s`.
        name: "product", "quantized_product" or "decode_attention".
    """
    __tracebackhide__ = True
    package = f"{getattr(solution, 'solution', solution).__name__.partition('.')[0]}.native"
    kernel = type(getattr(import_module(package).NATIVE, name))(package)  # compiled with the flags of now
    text = library.source(f"{name}.cpp", package)
    if text in _broken:
        raise type(_broken[text])(f"{str(_broken[text]).splitlines()[0].rstrip(':')}: see the first failure")
    try:
        library.library(f"{name}.cpp", package)  # compiled here, for all tests
        return in_child(lambda: work(kernel))
    except (library.CompileError, Endless) as error:
        _broken[text] = error
        raise


def stored(values: Any, dtype: str) -> Array:
    """Numbers as a kernel gets them: NumPy has no bf16, and holds it as uint16."""
    values = np.asarray(values, np.float32)
    if dtype == "float32":
        return values
    words = values.view(np.uint32)
    rounded = ((words + 0x7FFF + (words >> 16 & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(values), np.uint16(0x7FC0), rounded)


def numbers(array: Array) -> Array:
    """What a kernel's numbers are, in float64."""
    wide = (array.astype(np.uint32) << 16).view(np.float32) if array.dtype == np.uint16 else array
    return wide.astype(np.float64)


def rounded(values: Any, dtype: str) -> Array:
    """Numbers after rounding to a type, in float64."""
    return numbers(stored(values, dtype))


def guarded(array: Array) -> Array:
    """A copy with other numbers before and after it in memory."""
    around = np.full(array.size + 2 * GUARD, POISON[str(array.dtype)], array.dtype)
    copy = around[GUARD : GUARD + array.size].reshape(array.shape)
    copy[...] = array
    return copy


def assert_untouched(name: str, copy: Array) -> None:
    """Raise AssertionError if a number beside a guarded array has changed."""
    around = guarded(copy).base
    assert around is not None and copy.base is not None
    changed = np.flatnonzero(around.view(np.uint8) != copy.base.view(np.uint8)) // copy.itemsize
    assert not len(changed), (
        f"the kernel writes outside of {name} {copy.shape}: at number {changed[0] - GUARD} of its {copy.size}. "
        "The last block has fewer than 16 outputs, and store_outputs knows how many"
    )


def multiply(solution: Any, cases: list, dtype: str, in_tiles: bool) -> list[Array]:
    """For each case x (R, I), W (O, I) and bias (O,) or None: what `product.cpp` writes to y (R, O), in float64."""
    __tracebackhide__ = True
    return in_child_of(
        solution,
        "product",
        lambda product: [_multiply(product, *case, dtype=dtype, in_tiles=in_tiles) for case in cases],
    )


def _multiply(product: Any, x: Array, w: Array, bias: Array | None, dtype: str, in_tiles: bool) -> Array:
    y = guarded(stored(np.full((len(x), len(w)), np.nan), dtype))
    given = guarded(stored(x, dtype)), guarded(product.pack(stored(w, dtype)))
    of_bias = None if bias is None else of_numpy(guarded(stored(bias, "float32")), "float32")
    arrays = [of_numpy(array, dtype) for array in given]
    product.multiply(*arrays, of_bias, of_numpy(y, dtype), in_tiles=in_tiles)
    assert_untouched("y", y)
    return numbers(y)


def multiply_quantized(solution: Any, cases: list, group_size: int, bits: int) -> list[Array]:
    """For each case x (R, I), numbers (O, I), scales and biases (O, G): what `quantized_product.cpp` writes to y."""
    __tracebackhide__ = True
    return in_child_of(
        solution,
        "quantized_product",
        lambda product: [
            _multiply_quantized(product, *case, group_size=group_size, bits=bits) for case in cases
        ],
    )


def _multiply_quantized(
    product: Any, x: Array, w: Array, scales: Array, biases: Array, group_size: int, bits: int
) -> Array:
    y = guarded(np.full((len(x), len(w)), np.nan, np.float32))
    constants = product.pack_constants(*(part.astype(np.float32) for part in (scales, biases)))
    given = stored(x, "float32"), product.pack(w.astype(np.uint8), bits), constants
    arrays = [of_numpy(guarded(array)) for array in given]
    product.multiply(*arrays, None, of_numpy(y), group_size, bits)
    assert_untouched("y", y)
    return numbers(y)


def attend(solution: Any, cases: list, scale: float, dtype: str = "float32") -> list[Array]:
    """Attention of decodes by `decode_attention.cpp`.

    Args:
        cases: each query (R, H, D), keys and values (S, Hkv, D), and for each row its runs, pairs of first slot and
            count.

    Returns:
        (R, H, D) for each case, in float64.
    """
    __tracebackhide__ = True
    return in_child_of(
        solution,
        "decode_attention",
        lambda attention: [_attend(attention, *case, scale=scale, dtype=dtype) for case in cases],
    )


def _attend(
    attention: Any, query: Array, keys: Array, values: Array, texts: list, scale: float, dtype: str
) -> Array:
    out = guarded(stored(np.full(query.shape, np.nan), dtype))
    read = [of_numpy(guarded(stored(array, dtype)), dtype) for array in (query, keys, values)]
    lists = [of_numpy(guarded(np.array(each, np.int64))) for each in listed(texts)]
    attention.attend(read[0], *map(KeptArray, read[1:]), of_numpy(out, dtype), *lists, scale)
    assert_untouched("out", out)
    return numbers(out)


def listed(texts: list) -> tuple[list[int], list[int], list[int]]:
    """Starts and counts of all runs, and where the runs of each row begin."""
    runs = [run for text in texts for run in text]
    ends = np.cumsum([0, *map(len, texts)]).tolist()
    return [start for start, _ in runs], [count for _, count in runs], ends
