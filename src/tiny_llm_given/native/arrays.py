"""Arrays as a kernel sees them: an address, a shape and a type. No array library is known here but NumPy."""

import ctypes
import math
from typing import Any, NamedTuple

import numpy as np

ITEM_SIZES = {"bfloat16": 2, "float16": 2, "float32": 4, "int8": 1, "uint8": 1, "int64": 8}


class NativeArray(NamedTuple):
    """An array in memory, its numbers one after the other.

    Args:
        address: of its first number.
        shape: its sizes.
        dtype: "bfloat16", "float16", "float32", "int8", "uint8" or "int64".
        owner: what keeps the memory.
    """

    address: int
    shape: tuple[int, ...]
    dtype: str
    owner: Any


def of_numpy(array: np.ndarray, dtype: str | None = None) -> NativeArray:
    """A NumPy array as a kernel sees it.

    Args:
        dtype: of the numbers; NumPy has no bf16, and holds it as uint16.

    Raises:
        ValueError: the numbers do not follow each other in memory.
    """
    if not array.flags.c_contiguous:
        raise ValueError("an array for a kernel must be contiguous: call np.ascontiguousarray")
    return NativeArray(array.ctypes.data, array.shape, dtype or str(array.dtype), array)


def of_buffer(buffer: Any, dtype: str) -> NativeArray:
    """An array of a library that shows its memory by Python's buffer protocol, as a kernel sees it.

    Raises:
        ValueError: the numbers do not follow each other in memory.
    """
    memory = memoryview(buffer)
    if not memory.c_contiguous:
        raise ValueError("an array for a kernel must be contiguous")
    # Of no numbers there is no address. NumPy takes no buffer of bf16, and ctypes does not look at the type.
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory)) if memory.nbytes else 0
    return NativeArray(address, memory.shape or (), dtype, buffer)


def shared(buffer: Any) -> np.ndarray:
    """The memory of such an array as NumPy's, without a copy. NumPy takes no bf16: give it as uint16."""
    return np.asarray(buffer)


def empty(shape: tuple[int, ...], dtype: str) -> NativeArray:
    """An array of NumPy that a kernel fills: its `owner`."""
    return of_numpy(np.empty(shape, np.uint16 if dtype == "bfloat16" else dtype), dtype)


def rows_of(array: NativeArray) -> NativeArray:
    """The same memory as rows: (..., I) to (R, I)."""
    *many, columns = array.shape
    return array._replace(shape=(math.prod(many), columns))


def bytes_of(array: NativeArray) -> int:
    """How many bytes an array takes."""
    return ITEM_SIZES[array.dtype] * math.prod(array.shape)


def part_of(array: NativeArray, rows: slice) -> NativeArray:
    """Some neighbouring rows of an array: (T, ...) to (L, ...), the same memory."""
    start, stop, _ = rows.indices(array.shape[0])
    before, some = (array._replace(shape=(count, *array.shape[1:])) for count in (start, stop - start))
    return some._replace(address=array.address + bytes_of(before))


def numbers_of(array: NativeArray) -> np.ndarray:
    """The same memory as an array of NumPy, bf16 as uint16. It does not keep the memory: the array's owner does."""
    kind = np.uint16 if array.dtype == "bfloat16" else array.dtype
    memory = (ctypes.c_char * bytes_of(array)).from_address(array.address)
    return np.frombuffer(memoryview(memory), kind).reshape(array.shape)


def require(name: str, array: NativeArray, shape: tuple[int, ...], *dtypes: str) -> None:
    """Raises ValueError unless an array has this shape and one of these types."""
    if array.shape != shape or array.dtype not in dtypes:
        raise ValueError(f"{name} is {array.shape} {array.dtype}, and must be {shape} {' or '.join(dtypes)}")
