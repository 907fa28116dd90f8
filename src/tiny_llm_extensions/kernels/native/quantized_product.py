"""Products with 4- and 8-bit matrices by `quantized_product.cpp`: packing, checks and the call."""

from collections.abc import Callable
from functools import cached_property

import numpy as np

from .kernel import MANY_ROWS, QUANTIZED, Kernel, NativeArray, floats_of, of_numpy, require, tiles_of

LINE = 16  # outputs of a block
COLUMNS = {4: 8, 8: 4}  # of each output in a line, by bits
GROUP_SIZES = (32, 64, 128)
FLOATS = "bfloat16", "float32"  # types of x and y
X_BITS = (8, 16)  # of the integers that x is rounded to
CONSTANTS = *FLOATS, "float16"  # types of scales and biases, by their number in C++


def pack(numbers: np.ndarray, bits: int) -> np.ndarray:
    """Numbers in lines, as `quantized_product.cpp` reads them.

    Args:
        numbers: (O, I), uint8, below 2^bits; I is a multiple of 8.
        bits: 4 or 8.

    Returns:
        (O / 16, I / C, 16, 4), uint8, with C = 8 for 4 bits and C = 4 for 8; O is rounded up, and zeros fill the rest.
    """
    numbers = np.pad(numbers, ((0, -len(numbers) % LINE), (0, 0)))
    lines = numbers.reshape(-1, LINE, numbers.shape[1] // COLUMNS[bits], COLUMNS[bits]).transpose(0, 2, 1, 3)
    if bits == 4:
        lines = lines[..., :4] | lines[..., 4:] << 4
    return np.ascontiguousarray(lines)


def numbers_of(words: np.ndarray, bits: int) -> np.ndarray:
    """The numbers in words of 32 bits: (O, W) to (O, W · 32 / bits), uint8."""
    pairs = words.view(np.uint8)
    if bits == 8:
        return pairs
    return np.stack([pairs & 15, pairs >> 4], axis=-1).reshape(len(words), -1)


def pack_constants(scales: np.ndarray, biases: np.ndarray) -> np.ndarray:
    """Scales and biases in lines.

    Args:
        scales, biases: (O, G) for G groups, float32 or float16, or bf16 as uint16.

    Returns:
        (O / 16, G, 2, 16), O rounded up; zeros fill the rest.
    """
    both = np.stack([scales, biases], axis=-1)
    both = np.pad(both, ((0, -len(both) % LINE), (0, 0), (0, 0)))
    return np.ascontiguousarray(both.reshape(-1, LINE, *both.shape[1:]).transpose(0, 2, 3, 1))


def unpacked_rows(
    lines: np.ndarray, constants: np.ndarray, ids: np.ndarray, bits: int, group_size: int
) -> np.ndarray:
    """Some rows of a packed matrix, dequantised.

    Args:
        lines, constants: from `pack` and `pack_constants`.
        ids: (...) integers.

    Returns:
        (..., I) float32.
    """
    block, place = np.divmod(ids, LINE)
    fours = lines[block, :, place]
    if bits == 4:
        fours = np.concatenate([fours & 15, fours >> 4], axis=-1)
    pairs = floats_of(constants[block, :, :, place])
    groups = fours.reshape(*ids.shape, -1, group_size)
    return (groups * pairs[..., :1] + pairs[..., 1:]).reshape(*ids.shape, -1)


class PackedMatrix:
    """A matrix (O, I) that multiplies many times: what does not change is checked once.

    Args:
        kernel: the kernel that multiplies.
        w: from `pack`.
        constants: from `pack_constants`, bf16, float32 or float16.
        outputs: O.
        group_size: numbers that share a scale: 32, 64 or 128.
        bits: 4 or 8.
        x_bits: 8 or 16: of the integers that x is rounded to.

    Raises:
        ValueError: a shape, a type or a number is wrong.
    """

    def __init__(
        self,
        kernel: "QuantizedKernel",
        w: NativeArray,
        constants: NativeArray,
        outputs: int,
        group_size: int,
        bits: int,
        x_bits: int = 8,
    ):
        if bits not in COLUMNS or group_size not in GROUP_SIZES or x_bits not in X_BITS:
            raise ValueError(
                f"{bits} bits in groups of {group_size}, x in {x_bits} bits: choose 4 or 8 bits, groups of 32, 64 or "
                "128, and 8 or 16 bits of x"
            )
        blocks, groups = -(-outputs // LINE), constants.shape[1]
        self.outputs, self.columns = outputs, groups * group_size
        require("w", w, (blocks, self.columns // COLUMNS[bits], LINE, 4), "uint8")
        require("constants", constants, (blocks, groups, 2, LINE), *CONSTANTS)
        self.kernel, self._arrays = kernel, (w, constants)  # keeps them alive
        self._addresses = w.address, constants.address
        self._sizes = outputs, self.columns, group_size, bits
        self._kinds = CONSTANTS.index(constants.dtype), x_bits

    def fields(self, bias: int | None) -> list[int]:
        """A `Matrix` of `layers.cpp`.

        Args:
            bias: the address of (O,), float32; or None.
        """
        return [*self._addresses, bias or 0, *self._sizes, *self._kinds]

    def multiply(self, x: int, y: int, bias: int | None, rows: int, is_bf16: bool, threads: int) -> None:
        """Writes x @ Wᵀ + bias to y, with x rounded to `x_bits`: each group of a row has its largest number
        as 127 or 32,767. Many rows in 16 bits are multiplied in tiles, which are given: the numbers are the same, or
        nearer to those of exact arithmetic where the processor has a matrix unit.

        Nothing is checked: `x` (R, I) and `y` (R, O), both bf16 or both float32, and `bias` (O,), float32 or None, are
        addresses of arrays whose numbers follow each other.

        Raises:
            NativeError: there is no such kernel on this machine.
            NotImplementedError: a task of Day 4.1 is blank.
        """
        in_tiles = rows >= MANY_ROWS and self._kinds[1] == 16
        function = self.kernel.multiply_many if in_tiles else self.kernel.multiply_addresses
        self.multiply_by(function, x, y, bias, rows, is_bf16, threads)

    def multiply_by(
        self,
        function: Callable[..., int],
        x: int,
        y: int,
        bias: int | None,
        rows: int,
        is_bf16: bool,
        threads: int,
    ) -> None:
        """The same by one of the kernel's functions."""
        flags = is_bf16, *self._kinds, threads
        answer = function(x, *self._addresses, bias, y, rows, *self._sizes, *flags)
        if answer:
            self.kernel.check(answer)


class QuantizedKernel(Kernel):
    """`quantized_product.cpp` of a solution."""

    file, tasks = "quantized_product.cpp", {3: "multiply_group"}
    pack, pack_constants = staticmethod(pack), staticmethod(pack_constants)

    def multiply(
        self,
        x: NativeArray,
        w: NativeArray,
        constants: NativeArray,
        bias: NativeArray | None,
        y: NativeArray,
        group_size: int,
        bits: int,
        threads: int = 1,
        x_bits: int = 8,
    ) -> None:
        """Writes x @ Wᵀ + bias to y once, see `PackedMatrix`, by the solution's kernel whatever the number of rows.

        Args:
            x: (R, I), bf16 or float32.
            w, constants, group_size, bits, x_bits: see `PackedMatrix`.
            bias: (O,), float32; None adds nothing.
            y: (R, O), in x's type.
            threads: how many share the outputs.

        Raises:
            ValueError: a shape, a type or a number is wrong.
            NativeError: there is no such kernel on this machine.
            NotImplementedError: a task of Day 4.1 is blank.
        """
        rows, outputs = y.shape
        matrix = PackedMatrix(self, w, constants, outputs, group_size, bits, x_bits)
        require("x", x, (rows, matrix.columns), *FLOATS)
        require("y", y, (rows, outputs), x.dtype)
        if bias is not None:
            require("bias", bias, (outputs,), "float32")
        of_bias = None if bias is None else bias.address
        arguments = x.address, y.address, of_bias, rows, x.dtype == "bfloat16", threads
        matrix.multiply_by(self.multiply_addresses, *arguments)

    @cached_property
    def multiply_addresses(self):
        """The function of the file."""
        return self.function("multiply_quantized", QUANTIZED)

    @cached_property
    def multiply_many(self):
        """The function of `quantized_tiles.cpp`, for many rows in 16 bits."""
        given = tiles_of(self.package)
        return self.multiply_addresses if given is None else given.multiply_many

    def try_out(self) -> None:
        """See `Kernel`: a block of 4 bits."""
        x, y = of_numpy(np.zeros((1, 32), np.float32)), of_numpy(np.zeros((1, LINE), np.float32))
        w = of_numpy(np.zeros((1, 4, LINE, 4), np.uint8))
        self.multiply(x, w, of_numpy(np.zeros((1, 1, 2, LINE), np.float32)), None, y, 32, 4)
