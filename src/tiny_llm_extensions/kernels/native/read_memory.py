"""The speed at which this machine's memory is read, by `read_memory.cpp`."""

import ctypes
from functools import cache

import numpy as np

from .kernel import NativeArray, require
from .library import library

PIECE = 64 * 1024  # numbers, as in the kernel


def read_memory(array: NativeArray, threads: int = 1) -> float:
    """The sum of an array, for which all of it has been read once.

    Args:
        array: (N,), float32; N is a multiple of `PIECE`.
        threads: how many share it.

    Raises:
        ValueError: a shape or a type is wrong.
        NativeError: there is no such kernel on this machine.
    """
    pieces = array.shape[0] // PIECE
    require("array", array, (pieces * PIECE,), "float32")
    total = np.zeros(1, np.float32)
    _kernel()(array.address, pieces, total.ctypes.data, threads)
    return float(total[0])


@cache
def _kernel():
    kernel = library("read_memory.cpp").read_memory
    kernel.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_int]
    return kernel
