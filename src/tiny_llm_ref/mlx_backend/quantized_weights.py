"""The product with quantised weights as the device does it best, and the weight that a model holds for it."""

from collections.abc import Callable
from dataclasses import dataclass

import mlx.core as mx

from .quantize import check_product, quantize_weights, quantized_matmul_tiled

# From so many rows of x on, a CPU is faster in tiles: measured on one, where each row costs the kernel the same again.
MANY_ROWS = 8
SLICE_ROWS = 512  # rows that are quantised at the same time
FORMS = ("kernel", "words", "both")


@dataclass(frozen=True, eq=False)
class QuantizedWeights:
    """A matrix (O, I) in few bits, in place of an array in a model.

    Args:
        weight: (O, I · bits / 32) words, uint32; None where `prepared` took their place.
        scales, biases: (O, I / group_size); None where `prepared` took their place.
        group_size: numbers that share a scale and a bias: 32, 64 or 128.
        bits: 4 or 8.
        prepared: a function x (..., I) -> x @ Wᵀ (..., O) that holds the matrix as the device's kernel reads it, with
            its `shape` and its `nbytes`; None where the kernel reads the words themselves. `prepare_weights` makes it.
    """

    weight: mx.array | None
    scales: mx.array | None
    biases: mx.array | None
    group_size: int
    bits: int
    prepared: Callable[[mx.array], mx.array] | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """(O, I), the shape of the matrix that this stands for."""
        if self.scales is None:
            return self.prepared.shape
        return self.scales.shape[0], self.scales.shape[1] * self.group_size

    @property
    def nbytes(self) -> int:
        """Bytes of all that is held for this matrix: of words, scales, biases and `prepared`, whatever is there."""
        # TASK 2.3.2: what a product has to read from memory, and what the matrix takes there.
        parts = (self.weight, self.scales, self.biases, self.prepared)
        return sum(part.nbytes for part in parts if part is not None)

    @property
    def dtype(self) -> mx.Dtype:
        """The type of the numbers that this stands for."""
        return self.scales.dtype if self.scales is not None else self.prepared.dtype


def quantize_matrix(w: mx.array, group_size: int = 64, bits: int = 4) -> QuantizedWeights:
    """`quantize_weights` as one object. Some rows at a time: on its way, a number takes up to 50 bytes. Given."""
    starts = range(0, w.shape[0], SLICE_ROWS)
    slices = [quantize_weights(w[start : start + SLICE_ROWS], group_size, bits) for start in starts]
    parts = (mx.concatenate(part) for part in zip(*slices, strict=True))
    return QuantizedWeights(*parts, group_size, bits)


def prepare_weights(w: QuantizedWeights, form: str = "kernel") -> QuantizedWeights:
    """Turns a quantised matrix into what the device's kernel reads: once, at load. Given.

    MLX's kernels read the words as they are, so that every form is the same.

    Args:
        w: as `quantize_matrix` or a checkpoint gives it.
        form: "kernel", "words" or "both": what is held afterwards.

    Raises:
        ValueError: another form.
    """
    check_form(form)
    return w


def check_form(form: str) -> None:
    """Given. ValueError: there is no such form."""
    if form not in FORMS:
        raise ValueError(f"form {form!r} is unknown: choose {', '.join(FORMS)}")


def kernel_constants(scales: mx.array, biases: mx.array, dtype: mx.Dtype) -> tuple[mx.array, mx.array]:
    """What the kernel multiplies q by and adds, in its own form: its numbers are q · scale + bias, as ours are.

    Args:
        scales, biases: (O, I / group_size).
        dtype: the type that the kernel computes in; given several, it takes the widest.

    Returns:
        scales, biases in `dtype`.
    """
    # TASK 2.3.1: one type for all that goes into the product.
    return scales.astype(dtype), biases.astype(dtype)


def quantized_matmul_device(
    scales: mx.array,
    biases: mx.array,
    group_size: int,
    bits: int,
    a: mx.array,
    b: mx.array,
    transpose_b: bool = False,
) -> mx.array:
    """`quantized_matmul_tiled` by the device's own kernel, which dequantises as it multiplies.

    Args:
        scales, biases, group_size, bits, a, b, transpose_b: see `quantized_matmul_tiled`.

    Returns:
        (..., I), or (..., O) with `transpose_b`, in a's type.

    Raises:
        ValueError: as `quantized_matmul_tiled`.
    """
    check_product(scales, biases, group_size, bits, a, b, transpose_b)
    # TASK 2.3.1: MLX has this very product; hand it the constants in a's type.
    scales, biases = kernel_constants(scales, biases, a.dtype)
    return mx.quantized_matmul(a, b, scales, biases, transpose=transpose_b, group_size=group_size, bits=bits)


def quantized_linear(x: mx.array, w: QuantizedWeights, bias: mx.array | None = None) -> mx.array:
    """A linear layer whose weights are quantised: `x @ W.T + bias`.

    Args:
        x: (..., I) inputs.
        w: stands for a matrix (O, I).
        bias: (O,) or None.

    Returns:
        (..., O) in x's type.

    Raises:
        ValueError: x has another number of columns than W.
    """
    if x.shape[-1] != w.shape[1]:
        raise ValueError(f"x has {x.shape[-1]} columns, and W {w.shape} needs {w.shape[1]}")
    # TASK 2.3.3: the prepared form multiplies where there is one; where `in_tiles` says so, Day 2's tiles; else the
    # device's kernel. W has one row an output, as in every linear layer.
    parts = (w.scales, w.biases, w.group_size, w.bits, x, w.weight)
    if in_tiles(x, w):
        out = quantized_matmul_tiled(*parts, transpose_b=True)
    elif w.prepared is not None:
        out = w.prepared(x)
    else:
        out = quantized_matmul_device(*parts, transpose_b=True)
    return out if bias is None else out + bias


def in_tiles(x: mx.array, w: QuantizedWeights) -> bool:
    """Whether x has so many rows that a CPU does better to dequantise W tile by tile. Given."""
    rows = x.size // x.shape[-1]
    return w.weight is not None and rows >= MANY_ROWS and mx.default_device() == mx.Device(mx.cpu)


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
    """a @ W or a @ Wᵀ for a quantised matrix W, by the path of Day 2 ("tiled") or of Day 3 ("device"). Given.

    Args:
        scales, biases, group_size, bits, a, b, transpose_b: see `quantized_matmul_tiled`.
        path: "tiled" or "device".

    Raises:
        ValueError: another path; or as `quantized_matmul_tiled`.
    """
    paths = {"tiled": quantized_matmul_tiled, "device": quantized_matmul_device}
    if path not in paths:
        raise ValueError(f"path {path!r} is unknown: choose {' or '.join(paths)}")
    return paths[path](scales, biases, group_size, bits, a, b, transpose_b)
