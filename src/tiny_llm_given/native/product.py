"""Products with bf16 and float32 matrices by `product.cpp`: packing, checks and the call."""

from functools import cached_property

import numpy as np

from .arrays import NativeArray, of_numpy, require
from .kernel import NUMBER, POINTER, SIZE, Kernel

LINE = 16  # outputs of a block
KERNELS = {"bfloat16": "multiply_bf16", "float32": "multiply_float"}


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


class ProductKernel(Kernel):
    """`product.cpp` of a solution."""

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
            threads: that share the outputs.
            in_tiles: whether several rows and blocks share what is loaded; otherwise one row by one block at a time.

        Raises:
            ValueError: a shape or a type is wrong.
            NativeError: there is no such kernel on this machine.
            NotImplementedError: a task of Day 4.1 is blank.
        """
        rows, columns = x.shape
        outputs = y.shape[1]
        require("x", x, (rows, columns), *KERNELS)
        require("w", w, packed_shape(outputs, columns, x.dtype), x.dtype)
        require("y", y, (rows, outputs), x.dtype)
        if bias is not None:
            require("bias", bias, (outputs,), "float32")
        addresses = x.address, w.address, None if bias is None else bias.address, y.address
        self.check(self._functions[x.dtype](*addresses, rows, outputs, columns, threads, in_tiles))

    @cached_property
    def _functions(self):
        types = [POINTER] * 4 + [SIZE] * 3 + [NUMBER] * 2
        return {dtype: self.function(name, types) for dtype, name in KERNELS.items()}

    def try_out(self) -> None:
        """See `Kernel`: one row and a tile, in both types."""
        for dtype, kind in (("bfloat16", np.uint16), ("float32", np.float32)):
            x, w, y = (np.zeros(shape, kind) for shape in ((2, 2), (80, 2), (2, 80)))
            self.multiply(of_numpy(x, dtype), of_numpy(pack(w), dtype), None, of_numpy(y, dtype))
