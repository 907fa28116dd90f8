"""Products with quantised weights by the device's kernels, and the weights that a model holds for them."""

from dataclasses import dataclass, replace
from typing import Protocol

import torch

from tiny_llm_engine.arrays.checks import check_product
from tiny_llm_engine.arrays.torch.int4 import Int4Matrix, has_int4_kernel

from .quantize import (
    dequantize_weights,
    quantize_weights,
    quantized_matmul_tiled,
    words_to_numbers,
)

# From this many rows of x on, tiles in float32 are faster than the int4 kernel on a CPU (measured on one).
MANY_ROWS = 128
SLICE_ROWS = 512  # rows that are quantised at the same time
FORMS = ("kernel", "words", "both")


class PreparedMatrix(Protocol):
    """A matrix (O, I) in the layout of the device's kernel: x (..., I) -> x @ Wᵀ (..., O)."""

    @property
    def shape(self) -> tuple[int, int]: ...

    @property
    def dtype(self) -> torch.dtype: ...

    @property
    def device(self) -> torch.device: ...

    @property
    def nbytes(self) -> int: ...

    def __call__(self, x: torch.Tensor) -> torch.Tensor: ...


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

    weight: torch.Tensor | None
    scales: torch.Tensor | None
    biases: torch.Tensor | None
    group_size: int
    bits: int
    prepared: PreparedMatrix | None = None
    float_dtype: torch.dtype | None = None

    @property
    def parts(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Words, scales and biases. Raises ValueError if `prepared` replaces them."""
        if self.weight is None or self.scales is None or self.biases is None:
            raise ValueError("this matrix has no words: prepare it in the form 'words' or 'both'")
        return self.weight, self.scales, self.biases

    def operands(
        self, x: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, int, int, torch.Tensor, torch.Tensor]:
        """The arguments of `quantized_matmul_tiled` that multiply x by this matrix. Raises ValueError as `parts`."""
        return *self.wide_constants, self.group_size, self.bits, x, self.parts[0]

    @property
    def wide_constants(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Scales and biases, in float32 unless they have the type of the dequantised numbers: nothing is rounded."""
        _, scales, biases = self.parts
        if self.float_dtype is None or scales.dtype in (self.float_dtype, torch.float32):
            return scales, biases
        return scales.float(), biases.float()

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
        parts = (self.weight, self.scales, self.biases, self.prepared)
        return sum(part.nbytes for part in parts if part is not None)

    @property
    def dtype(self) -> torch.dtype:
        """The type of the dequantised numbers."""
        if self.float_dtype is not None:
            return self.float_dtype
        return self.parts[1].dtype if self.prepared is None else self.prepared.dtype

    @property
    def device(self) -> torch.device:
        """The device that holds the matrix."""
        return self.parts[1].device if self.prepared is None else self.prepared.device

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """(..., I) to (..., O), by `quantized_linear`."""
        return quantized_linear(x, self)

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        """Some rows, dequantised: (...) ids to (..., I), in `dtype`. Raises ValueError as `parts`."""
        words, scales, biases = (part[ids] for part in (self.parts[0], *self.wide_constants))
        return dequantize_weights(words, scales, biases, self.group_size, self.bits).to(self.dtype)


def quantize_matrix(w: torch.Tensor, group_size: int = 64, bits: int = 4) -> QuantizedWeights:
    """Quantises a matrix, some rows at a time: meanwhile each of their numbers takes up to 50 bytes. Given."""
    starts = range(0, w.shape[0], SLICE_ROWS)
    slices = [quantize_weights(w[start : start + SLICE_ROWS], group_size, bits) for start in starts]
    words, scales, biases = (torch.cat(list(part)) for part in zip(*slices, strict=True))
    return QuantizedWeights(words, scales, biases, group_size, bits)


def prepare_weights(
    w: QuantizedWeights, form: str = "kernel", *, device: torch.device | str | None = None
) -> QuantizedWeights:
    """Converts a quantised matrix to the layout of the device's kernel, once, at load. Given.

    For 4 bits there is a kernel on CPUs with AVX2 or AVX-512 and on CUDA from compute capability 8.0 on, and an
    operator on Gaudi (the last two were not run by us). In all other cases the words are kept and only moved.

    Args:
        w: from `quantize_matrix` or from a checkpoint, on the CPU.
        form: what is held afterwards. "kernel": the kernel's layout instead of the words, where there is a kernel.
            "words": for looking up rows. "both": also for products of many rows on a CPU, which then use tiles; it
            holds a second copy of the weight, with 4 more bits per number, and of its scales and biases.
        device: the device that holds the matrix afterwards; w's own when None.

    Raises:
        ValueError: `form` has another value.
    """
    check_form(form)
    device = w.device if device is None else device
    prepared = _prepared(w, device) if w.bits == 4 and form != "words" else None
    if prepared is not None and form == "kernel":
        return replace(w, weight=None, scales=None, biases=None, prepared=prepared)
    parts = w.parts[0].view(torch.int32), *w.wide_constants
    words, scales, biases = (part.to(device) for part in parts)
    return replace(w, weight=words, scales=scales, biases=biases, prepared=prepared)


def check_form(form: str) -> None:
    """Raises ValueError if there is no such form. Given."""
    if form not in FORMS:
        raise ValueError(f"form {form!r} is unknown: choose {', '.join(FORMS)}")


def _prepared(w: QuantizedWeights, device: torch.device | str) -> PreparedMatrix | None:
    """The matrix in the layout of the 4-bit kernel; None if the device has none, or it cannot hold this matrix."""
    words, scales, biases = w.parts
    if words.device.type == "hpu":
        return None  # on the device already, as words: only a load makes the kernel's layout, from words on the CPU
    if str(device).startswith("hpu"):
        from tiny_llm_extensions.gaudi.hpu_quantized import uint4_matrix

        return uint4_matrix(words_to_numbers(words, 4), scales, biases, device)
    if not has_int4_kernel(device):
        return None
    table = kernel_constants(scales, biases, torch.bfloat16)
    return Int4Matrix.of(words_to_numbers(words, 4), table, w.group_size, w.dtype, device)


def kernel_constants(scales: torch.Tensor, biases: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Scales and zeros as the kernel takes them: its numbers are (q - 8) · scale + zero.

    Args:
        scales, biases: (O, I / group_size); ours are q · scale + bias.
        dtype: the type in which the kernel computes.

    Returns:
        (I / group_size, O, 2) in `dtype`, contiguous: pairs of scale and zero, first those of all outputs' first group.
    """
    # TASK 2.3.1: which zero gives the same number? Compute it in float32: bias and 8 scales nearly cancel.
    scales, biases = scales.float(), biases.float()
    table = torch.stack([scales, biases + 8 * scales], dim=-1)
    return table.transpose(0, 1).to(dtype).contiguous()


def quantized_matmul_device(
    scales: torch.Tensor,
    biases: torch.Tensor,
    group_size: int,
    bits: int,
    a: torch.Tensor,
    b: torch.Tensor,
    transpose_b: bool = False,
) -> torch.Tensor:
    """`quantized_matmul_tiled` by the device's own kernel, which dequantises while it multiplies.

    The kernel is torch's int4 product x @ Wᵀ, which computes in bf16, whatever a's type. Its layout is made again in
    every call; a model holds the one that `prepare_weights` makes. torch's int8 kernel does not support groups: 8 bits,
    a @ W, and 4 bits without a kernel use the tiles of Day 2.2.

    Args:
        scales, biases, group_size, bits, a, b, transpose_b: see `quantized_matmul_tiled`.

    Returns:
        (..., I), or (..., O) with `transpose_b`, in a's type.

    Raises:
        ValueError: as for `quantized_matmul_tiled`.
    """
    check_product(scales, biases, group_size, bits, a, b, transpose_b)
    # TASK 2.3.1: `prepare_weights` makes the kernel's layout, where there is a kernel; everything else uses tiles.
    w = QuantizedWeights(b, scales, biases, group_size, bits)
    kernel = prepare_weights(w).prepared if transpose_b else None
    if kernel is None:
        return quantized_matmul_tiled(scales, biases, group_size, bits, a, b, transpose_b)
    return kernel(a)


def quantized_linear(x: torch.Tensor, w: QuantizedWeights, bias: torch.Tensor | None = None) -> torch.Tensor:
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
    # TASK 2.3.3: use Day 2.2's tiles where `in_tiles` says so; else the prepared form, if there is one; else the
    # device's kernel. W has one row per output, as in every linear layer.
    if in_tiles(x, w):
        out = quantized_matmul_tiled(*w.operands(x), transpose_b=True)
    elif w.prepared is not None:
        out = w.prepared(x)
    else:
        out = quantized_matmul_device(*w.operands(x), transpose_b=True)
    return out if bias is None else out + bias


def in_tiles(x: torch.Tensor, w: QuantizedWeights) -> bool:
    """Whether x has enough rows that dequantising W tile by tile is faster on a CPU. Given."""
    rows = x.numel() // x.shape[-1]
    return w.weight is not None and rows >= MANY_ROWS and x.device.type == "cpu"


def quantized_matmul(
    scales: torch.Tensor,
    biases: torch.Tensor,
    group_size: int,
    bits: int,
    a: torch.Tensor,
    b: torch.Tensor,
    transpose_b: bool = False,
    *,
    path: str = "tiled",
) -> torch.Tensor:
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
