"""Products with quantised weights by the device's kernels, and the weights that a model holds for them."""

from dataclasses import dataclass, replace
from typing import Protocol

import mlx.core as mx

from tiny_llm_engine.arrays.checks import check_product

from .quantize import dequantize_weights, quantize_weights, quantized_matmul_tiled

# From this many rows of x on, tiles are faster on a CPU (measured on one): the kernel's time grows with every row.
MANY_ROWS = 8
SLICE_ROWS = 512  # rows that are quantised at the same time
FORMS = ("kernel", "words", "both")


class PreparedMatrix(Protocol):
    """A matrix (O, I) in the layout of the device's kernel: x (..., I) -> x @ Wᵀ (..., O)."""

    @property
    def shape(self) -> tuple[int, int]: ...

    @property
    def dtype(self) -> mx.Dtype: ...

    @property
    def nbytes(self) -> int: ...

    def __call__(self, x: mx.array) -> mx.array: ...


@dataclass(frozen=True, eq=False)
class QuantizedWeights:
    """A quantised matrix (O, I), which multiplies itself; a table also looks up its rows.

    Args:
        weight: (O, I · bits / 32) words, uint32; None if `prepared` replaces them.
        scales, biases: (O, I / group_size); None if `prepared` replaces them.
        group_size: numbers that share a scale and a bias: 32, 64 or 128.
        bits: 4 or 8.
        prepared: the matrix in the layout of the device's kernel; None where the kernel reads the words.
            `prepare_weights` makes it.
        float_dtype: the type of the dequantised numbers; that of the scales when None.
    """

    weight: mx.array | None
    scales: mx.array | None
    biases: mx.array | None
    group_size: int
    bits: int
    prepared: PreparedMatrix | None = None
    float_dtype: mx.Dtype | None = None

    @property
    def parts(self) -> tuple[mx.array, mx.array, mx.array]:
        """Words, scales and biases. Raises ValueError if `prepared` replaces them."""
        if self.weight is None or self.scales is None or self.biases is None:
            raise ValueError("this matrix has no words: prepare it in the form 'words' or 'both'")
        return self.weight, self.scales, self.biases

    def operands(self, x: mx.array) -> tuple[mx.array, mx.array, int, int, mx.array, mx.array]:
        """The arguments of `quantized_matmul_tiled` that multiply x by this matrix. Raises ValueError as `parts`."""
        return *self.wide_constants, self.group_size, self.bits, x, self.parts[0]

    @property
    def wide_constants(self) -> tuple[mx.array, mx.array]:
        """Scales and biases, in float32 unless they have the type of the dequantised numbers: nothing is rounded."""
        _, scales, biases = self.parts
        if self.float_dtype is None or scales.dtype in (self.float_dtype, mx.float32):
            return scales, biases
        return scales.astype(mx.float32), biases.astype(mx.float32)

    @property
    def shape(self) -> tuple[int, int]:
        """(O, I), the shape of the dequantised matrix."""
        if self.prepared is not None:
            return self.prepared.shape
        _, scales, _ = self.parts
        return scales.shape[0], scales.shape[1] * self.group_size

    @property
    def nbytes(self) -> int:
        """Bytes held for this matrix: of words, scales, biases and `prepared`, as far as they are there."""
        # TASK 2.3.2: the memory that the matrix takes, which is also what a product has to read.
        raise NotImplementedError("week 2 day 3 task 2: QuantizedWeights.nbytes")

    @property
    def dtype(self) -> mx.Dtype:
        """The type of the dequantised numbers."""
        if self.float_dtype is not None:
            return self.float_dtype
        return self.parts[1].dtype if self.prepared is None else self.prepared.dtype

    @property
    def evaluates_tiles(self) -> bool:
        """Whether a product with many rows evaluates each of its tiles, so that it cannot be traced."""
        return self.weight is not None and mx.default_device() == mx.Device(mx.cpu)

    def __call__(self, x: mx.array) -> mx.array:
        """(..., I) to (..., O), by `quantized_linear`."""
        return quantized_linear(x, self)

    def rows(self, ids: mx.array) -> mx.array:
        """Some rows, dequantised: (...) ids to (..., I), in `dtype`. Raises ValueError as `parts`."""
        words, scales, biases = (part[ids] for part in (self.parts[0], *self.wide_constants))
        return dequantize_weights(words, scales, biases, self.group_size, self.bits).astype(self.dtype)


def quantize_matrix(w: mx.array, group_size: int = 64, bits: int = 4) -> QuantizedWeights:
    """Quantises a matrix, some rows at a time: meanwhile each of their numbers takes up to 50 bytes. Given."""
    starts = range(0, w.shape[0], SLICE_ROWS)
    slices = [quantize_weights(w[start : start + SLICE_ROWS], group_size, bits) for start in starts]
    words, scales, biases = (mx.concatenate(list(part)) for part in zip(*slices, strict=True))
    return QuantizedWeights(words, scales, biases, group_size, bits)


def prepare_weights(w: QuantizedWeights, form: str = "kernel") -> QuantizedWeights:
    """Converts a quantised matrix to the layout of the device's kernel, once, at load. Given.

    MLX's kernels read the words as they are, so all forms are the same; scales and biases are `wide_constants`.

    Args:
        w: from `quantize_matrix` or from a checkpoint.
        form: "kernel", "words" or "both": what is held afterwards.

    Raises:
        ValueError: `form` has another value.
    """
    check_form(form)
    scales, biases = w.wide_constants
    return replace(w, scales=scales, biases=biases)


def check_form(form: str) -> None:
    """Raises ValueError if there is no such form. Given."""
    if form not in FORMS:
        raise ValueError(f"form {form!r} is unknown: choose {', '.join(FORMS)}")


def kernel_constants(scales: mx.array, biases: mx.array, dtype: mx.Dtype) -> tuple[mx.array, mx.array]:
    """Scales and biases as the kernel takes them: its numbers are q · scale + bias, as ours are.

    Args:
        scales, biases: (O, I / group_size).
        dtype: the type in which the kernel computes; given several types, it takes the widest.

    Returns:
        scales, biases in `dtype`.
    """
    # TASK 2.3.1: all inputs of the product must have one type.
    raise NotImplementedError("week 2 day 3 task 1: kernel_constants")


def quantized_matmul_device(
    scales: mx.array,
    biases: mx.array,
    group_size: int,
    bits: int,
    a: mx.array,
    b: mx.array,
    transpose_b: bool = False,
) -> mx.array:
    """`quantized_matmul_tiled` by the device's own kernel, which dequantises while it multiplies.

    Args:
        scales, biases, group_size, bits, a, b, transpose_b: see `quantized_matmul_tiled`.

    Returns:
        (..., I), or (..., O) with `transpose_b`, in a's type.

    Raises:
        ValueError: as for `quantized_matmul_tiled`.
    """
    check_product(scales, biases, group_size, bits, a, b, transpose_b)
    # TASK 2.3.1: MLX has exactly this product; pass the constants in a's type.
    raise NotImplementedError("week 2 day 3 task 1: quantized_matmul_device")


def quantized_linear(x: mx.array, w: QuantizedWeights, bias: mx.array | None = None) -> mx.array:
    """A linear layer with quantised weights: `x @ W.T + bias`.

    Args:
        x: (..., I) inputs.
        w: a quantised (O, I) matrix.
        bias: (O,) or None.

    Returns:
        (..., O) in x's type.

    Raises:
        ValueError: x and W do not have the same number of columns.
    """
    if x.shape[-1] != w.shape[1]:
        raise ValueError(f"x has {x.shape[-1]} columns, and W {w.shape} needs {w.shape[1]}")
    if w.prepared is None and w.wide_constants[0].dtype == mx.float32 != x.dtype:
        # In x's type the kernel would round scales and biases, and with them every weight.
        return quantized_linear(x.astype(mx.float32), w, bias).astype(x.dtype)
    # TASK 2.3.3: use Day 2.2's tiles where `in_tiles` says so; else the prepared form, if there is one; else the
    # device's kernel. W has one row per output, as in every linear layer.
    raise NotImplementedError("week 2 day 3 task 3: quantized_linear")


def in_tiles(x: mx.array, w: QuantizedWeights) -> bool:
    """Whether x has enough rows that dequantising W tile by tile is faster on a CPU. Given."""
    return w.evaluates_tiles and x.size // x.shape[-1] >= MANY_ROWS


def quantized_matmul(
    scales: mx.array,
    biases: mx.array,
    group_size: int,
    bits: int,
    a: mx.array,
    b: mx.array,
    transpose_b: bool = False,
    *,
    path: str = "tiled",
) -> mx.array:
    """a @ W or a @ Wᵀ for a quantised matrix W, on the path of Day 2.2 or of Day 2.3. Given.

    Args:
        scales, biases, group_size, bits, a, b, transpose_b: see `quantized_matmul_tiled`.
        path: "tiled" (Day 2.2) or "device" (Day 2.3).

    Raises:
        ValueError: `path` has another value, or as for `quantized_matmul_tiled`.
    """
    paths = {"tiled": quantized_matmul_tiled, "device": quantized_matmul_device}
    if path not in paths:
        raise ValueError(f"path {path!r} is unknown: choose {' or '.join(paths)}")
    return paths[path](scales, biases, group_size, bits, a, b, transpose_b)
