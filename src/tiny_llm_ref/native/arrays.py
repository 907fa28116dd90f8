"""Arrays as a kernel sees them: an address, a shape and a type. Given; knows no array library but NumPy."""

from typing import Any, NamedTuple

import numpy as np


class NativeArray(NamedTuple):
    """An array in memory, its numbers one after the other.

    Args:
        address: of its first number.
        shape: its sizes.
        dtype: "bfloat16", "float32", "int8", "uint8" or "int64".
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


def require(name: str, array: NativeArray, shape: tuple[int, ...], *dtypes: str) -> None:
    """Raises ValueError unless an array has this shape and one of these types."""
    if array.shape != shape or array.dtype not in dtypes:
        raise ValueError(f"{name} is {array.shape} {array.dtype}, and must be {shape} {' or '.join(dtypes)}")
