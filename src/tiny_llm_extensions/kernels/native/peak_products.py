"""The most products per second that this machine's instructions give, by `peak_products.cpp`."""

import ctypes
from functools import cache, partial

from tiny_llm_engine.backends.samples import medians

from .library import GIVEN, UNIT, library

ROUNDS, SAMPLES = 2**20, 5  # of the loop, which takes 5 to 20 ms


def peak_products(threads: int = 1) -> float:
    """Additions and multiplications per second of numbers in registers: bf16 in a matrix unit, else of 16 bits.

    Raises:
        NativeError: there is no such kernel on this machine.
    """
    run = partial(_kernel(), ROUNDS, threads)
    return run() / medians({"registers": run}, SAMPLES)["registers"]


@cache
def _kernel():
    kernel = library("peak_products.cpp", GIVEN, UNIT).multiply_in_registers
    kernel.argtypes, kernel.restype = [ctypes.c_int64, ctypes.c_int], ctypes.c_int64
    return kernel
