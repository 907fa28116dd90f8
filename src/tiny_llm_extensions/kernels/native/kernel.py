"""Kernels as Python calls them: their arrays and threads, files compiled at the first call, and the product."""

import ctypes
import math
import os
from collections.abc import Callable, Mapping, Sequence
from functools import cache, cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np

from .library import GIVEN, NativeError, library

POINTER, SIZE, NUMBER, FLOAT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int, ctypes.c_float
ITEM_SIZES = {"bfloat16": 2, "float16": 2, "float32": 4, "int8": 1, "uint8": 1, "int64": 8}
SMALL = 2**20  # bytes that one thread reads sooner than it wakes another one
LINE = 16  # outputs of a block
MANY_ROWS = 32  # from which on tiles pay, as in `layers.cpp`
TILES = "quantized_tiles.h", "matrix_unit.h", "unit.h"  # a processor takes the first one, or the others
CHUNK = 32  # columns of a tile
QUANTIZED = [POINTER] * 5 + [SIZE] * 3 + [NUMBER] * 6  # the arguments of a product with a quantised matrix
PLAIN_BF16 = CHUNK, 0, True, 0, 16  # the arguments from `group` on for one that is plain: it has 0 bits
PRODUCTS = {"bfloat16": "multiply_bf16", "float32": "multiply_float"}


class NativeArray(NamedTuple):
    """An array in memory, its numbers one after the other.

    Args:
        address: where its first number is in memory.
        shape: its sizes.
        dtype: "bfloat16", "float16", "float32", "int8", "uint8" or "int64".
        owner: what keeps the memory.
    """

    address: int
    shape: tuple[int, ...]
    dtype: str
    owner: Any


class PortArrays(NamedTuple):
    """What a port does with arrays for a kernel.

    Args:
        names: of its types.
        native_array: an array as a kernel sees it, computed, its numbers one after the other.
        of_integers: an array of a list.
        written: makes its array of one of NumPy's that a kernel has filled, see `empty`.
        addresses_of: where keys, values and scales of a pool are.
        threads: how many threads compute.
    """

    names: Mapping[Any, str]
    native_array: Callable[[Any], NativeArray]
    of_integers: Callable[[list[int]], Any]
    written: Callable[[NativeArray], Any]
    addresses_of: Callable[[Any], Sequence[int]]
    threads: Callable[[], int]


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
    # An empty array has no address. NumPy takes no buffer of bf16, and ctypes does not look at the type.
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


def numbers_of(array: NativeArray) -> np.ndarray:
    """The same memory as an array of NumPy, bf16 as uint16. It does not keep the memory: the array's owner does."""
    kind = np.uint16 if array.dtype == "bfloat16" else array.dtype
    memory = (ctypes.c_char * bytes_of(array)).from_address(array.address)
    return np.frombuffer(memoryview(memory), kind).reshape(array.shape)


def floats_of(numbers: np.ndarray) -> np.ndarray:
    """Numbers in float32; those in uint16 are bf16."""
    if numbers.dtype == np.uint16:
        return (numbers.astype(np.uint32) << 16).view(np.float32)
    return numbers.astype(np.float32)


def require(name: str, array: NativeArray, shape: tuple[int, ...], *dtypes: str) -> None:
    """Raises ValueError unless an array has this shape and one of these types."""
    if array.shape != shape or array.dtype not in dtypes:
        raise ValueError(f"{name} is {array.shape} {array.dtype}, and must be {shape} {' or '.join(dtypes)}")


def threads_for(size: int) -> int:
    """The threads for a kernel that reads this many bytes, those read for several rows counted as often."""
    return available_threads() if size >= SMALL else 1


def available_threads() -> int:
    """OMP_NUM_THREADS, if it is a number; else the cores that this process may use."""
    wanted = os.environ.get("OMP_NUM_THREADS", "")
    if wanted.isdecimal() and int(wanted) > 0:
        return int(wanted)
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # macOS
        return os.cpu_count() or 1


class Kernel:
    """A file of C++ with blanks of Day 4.1, compiled at its first call.

    Args:
        package: the solution's package, which has the file.
    """

    file: ClassVar[str]
    tasks: ClassVar[dict[int, str]]  # of Day 4.1: the function of each

    def __init__(self, package: str):
        self.package = package

    @cached_property
    def _functions(self) -> dict[str, Callable[..., int]]:
        """Those that are compiled, by a type of numbers."""
        return {}

    def function(self, name: str, types: Sequence[type], flags: tuple[str, ...] = ()) -> Callable[..., int]:
        """A function of the file, compiled with further flags.

        Raises:
            NativeError: there is no such kernel on this machine.
        """
        function = getattr(library(self.file, self.package, flags=flags), name)
        function.argtypes = types
        return function

    def check(self, answer: int) -> None:
        """Raises NotImplementedError with the address of a blank: a kernel answers with the task that is one, or 0."""
        if answer:
            raise NotImplementedError(f"week 4 day 1 task {answer}: {self.tasks[answer]}")

    def try_out(self) -> None:
        """A call on a few numbers."""
        raise NotImplementedError

    @cached_property
    def problem(self) -> str | None:
        """Why the kernel does not run here, in one line, or None: no compiler, an error in it, a blank task."""
        try:
            self.try_out()
            return None
        except (NativeError, NotImplementedError) as error:
            return one_line(error)

    @property
    def works(self) -> bool:
        """Whether the kernel runs on this machine."""
        return self.problem is None


def one_line(error: Exception) -> str:
    """The first line of a message, which for errors in a kernel says which file."""
    return str(error).splitlines()[0].rstrip(":")


def pack(w: np.ndarray) -> np.ndarray:
    """A matrix in lines, as `product.cpp` reads it.

    Args:
        w: (O, I), float32, or bf16 as uint16.

    Returns:
        (O / 16, I / C, 16, C) with C = 1 for float32 and C = 2 for bf16, both sizes rounded up; zeros fill the rest.
    """
    columns = 4 // w.dtype.itemsize
    O, I = w.shape
    if O % LINE or I % columns:
        w = np.pad(w, ((0, -O % LINE), (0, -I % columns)))
    words = np.ascontiguousarray(w).view(np.uint32).reshape(-1, LINE, w.shape[1] // columns)
    lines = np.ascontiguousarray(words.transpose(0, 2, 1))
    return lines.view(w.dtype).reshape(*lines.shape, columns)


def packed_shape(outputs: int, columns: int, dtype: str) -> tuple[int, int, int, int]:
    """The shape of a packed matrix (O, I)."""
    count = 2 if dtype == "bfloat16" else 1
    return -(-outputs // LINE), -(-columns // count), LINE, count


@cache
def tiles_of(package: str) -> ctypes.CDLL | None:
    """`quantized_tiles.cpp` with a solution's kernel of Day 4.1; None where that does not compile."""
    files = *((file, GIVEN) for file in TILES), ("quantized_product.cpp", package)
    try:
        given = library("quantized_tiles.cpp", GIVEN, files)
    except NativeError:
        return None
    given.multiply_many.argtypes = QUANTIZED
    return given


class ProductKernel(Kernel):
    """`product.cpp` of a solution; many rows of bf16 numbers by a matrix unit, if the processor has one."""

    file, tasks = "product.cpp", {1: "multiply_line", 2: "multiply_tile"}
    pack = staticmethod(pack)

    def multiply(
        self,
        x: NativeArray,
        w: NativeArray,
        bias: NativeArray | None,
        y: NativeArray,
        threads: int = 1,
        in_tiles: bool = True,
    ) -> None:
        """Writes x @ Wᵀ + bias to y. Sums are float32; each output is rounded once.

        Args:
            x: (R, I), bf16 or float32.
            w: from `pack`, in x's type.
            bias: (O,), float32; None adds nothing.
            y: (R, O), in x's type.
            threads: how many share the outputs.
            in_tiles: whether several rows and blocks share what is loaded; otherwise one row by one block at a time.

        Raises:
            ValueError: a shape or a type is wrong.
            NativeError: there is no such kernel on this machine.
            NotImplementedError: a task of Day 4.1 is blank.
        """
        rows, columns = x.shape
        outputs = y.shape[1]
        require("x", x, (rows, columns), *PRODUCTS)
        require("w", w, packed_shape(outputs, columns, x.dtype), x.dtype)
        require("y", y, (rows, outputs), x.dtype)
        if bias is not None:
            require("bias", bias, (outputs,), "float32")
        of_bias, sizes = None if bias is None else bias.address, (rows, outputs, columns)
        if in_tiles and rows >= MANY_ROWS and columns % CHUNK == 0 and x.dtype == "bfloat16" and self._unit:
            self._unit.multiply_many(
                x.address, w.address, None, of_bias, y.address, *sizes, *PLAIN_BF16, threads
            )
        else:
            addresses = x.address, w.address, of_bias, y.address
            self.check(self._functions[x.dtype](*addresses, *sizes, threads, in_tiles))

    @cached_property
    def _unit(self) -> ctypes.CDLL | None:
        """What multiplies by plain matrices, if the processor has a unit for it."""
        given = tiles_of(self.package)
        return given if given is not None and given.takes_plain(True, CHUNK) else None

    @cached_property
    def _functions(self) -> dict[str, Callable[..., int]]:
        types = [POINTER] * 4 + [SIZE] * 3 + [NUMBER] * 2
        return {dtype: self.function(name, types) for dtype, name in PRODUCTS.items()}

    def try_out(self) -> None:
        """See `Kernel`: one row and a tile, in both types."""
        for dtype, kind in (("bfloat16", np.uint16), ("float32", np.float32)):
            x, w, y = (np.zeros(shape, kind) for shape in ((2, 2), (80, 2), (2, 80)))
            self.multiply(of_numpy(x, dtype), of_numpy(pack(w), dtype), None, of_numpy(y, dtype))
