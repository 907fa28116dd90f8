"""The product with quantised weights as the device does it best, and the weight that a model holds for it."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from . import hpu
from .quantize import check_product, quantize_weights, quantized_matmul_tiled, words_to_numbers

# From so many rows of x on, a CPU is faster in tiles than in the int4 kernel, in float32 on the one that we measured.
MANY_ROWS = 128
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

    weight: torch.Tensor | None
    scales: torch.Tensor | None
    biases: torch.Tensor | None
    group_size: int
    bits: int
    prepared: Callable[[torch.Tensor], torch.Tensor] | None = None

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
        raise NotImplementedError("week 2 day 3 task 2: QuantizedWeights.nbytes")

    @property
    def dtype(self) -> torch.dtype:
        """The type of the numbers that this stands for."""
        return self.scales.dtype if self.scales is not None else self.prepared.dtype

    @property
    def device(self) -> torch.device:
        """Where they are."""
        return self.scales.device if self.scales is not None else self.prepared.device


def quantize_matrix(w: torch.Tensor, group_size: int = 64, bits: int = 4) -> QuantizedWeights:
    """`quantize_weights` as one object. Some rows at a time: on its way, a number takes up to 50 bytes. Given."""
    starts = range(0, w.shape[0], SLICE_ROWS)
    slices = [quantize_weights(w[start : start + SLICE_ROWS], group_size, bits) for start in starts]
    parts = (torch.cat(part) for part in zip(*slices, strict=True))
    return QuantizedWeights(*parts, group_size, bits)


def prepare_weights(
    w: QuantizedWeights, form: str = "kernel", *, device: torch.device | str | None = None
) -> QuantizedWeights:
    """Turns a quantised matrix into what the device's kernel reads: once, at load. Given.

    4 bits have a kernel on CPUs with AVX2 or AVX-512, on CUDA from compute capability 8.0 on, and an operator on Gaudi
    (the last two were not run by us). Everything else keeps its words, and is moved only.

    Args:
        w: as `quantize_matrix` or a checkpoint gives it, on the CPU.
        form: what is held afterwards. "kernel": the kernel's form in place of the words, where there is a kernel.
            "words": for picking rows. "both": for products of many rows on a CPU as well, which go in tiles then; it
            is a second copy of the weight, 4 more bits a number, and of its scales and biases.
        device: where the matrix goes; w's own when None.

    Raises:
        ValueError: another form.
    """
    check_form(form)
    device = w.weight.device if device is None else device
    prepared = _prepared(w, device) if w.bits == 4 and form != "words" else None
    if prepared is not None and form == "kernel":
        return QuantizedWeights(None, None, None, w.group_size, w.bits, prepared)
    words, scales, biases = (part.to(device) for part in (w.weight.view(torch.int32), w.scales, w.biases))
    return QuantizedWeights(words, scales, biases, w.group_size, w.bits, prepared)


def check_form(form: str) -> None:
    """Given. ValueError: there is no such form."""
    if form not in FORMS:
        raise ValueError(f"form {form!r} is unknown: choose {', '.join(FORMS)}")


def _prepared(
    w: QuantizedWeights, device: torch.device | str
) -> Callable[[torch.Tensor], torch.Tensor] | None:
    """The form of a kernel for 4 bits; None where the device has none, or cannot express this matrix."""
    kind = str(device).partition(":")[0]
    if w.weight.device.type == "hpu":
        return None  # there already, as words: the kernel's form is made at load, on the CPU, and would read the device
    if kind == "hpu":
        return hpu.uint4_matrix(words_to_numbers(w.weight, 4), w.scales, w.biases, device)
    has_kernel = {"cpu": _cpu_has_kernel, "cuda": _cuda_has_kernel}.get(kind)
    return _Int4Matrix.of(w, device) if has_kernel and has_kernel() else None


def _cpu_has_kernel() -> bool:
    """Elsewhere the kernel is there too, but in plain loops, which are slower than tiles."""
    vectors = torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")
    return vectors and hasattr(torch, "_weight_int4pack_mm_for_cpu")


def _cuda_has_kernel() -> bool:
    return torch.cuda.get_device_capability() >= (8, 0)


def _on_cuda(array: torch.Tensor) -> bool:
    return array.device.type == "cuda"


@dataclass(frozen=True, eq=False)
class _Int4Matrix:
    """A matrix (O, I) of 4 bits in the layout of torch's int4 kernel, which multiplies in bf16. Given.

    Args:
        words: the numbers as the kernel of this device keeps them; O is padded to a multiple of 16.
        table: (I / group_size, O padded, 2), bf16, from `kernel_constants`.
        group_size: numbers that share a scale and a zero.
        shape: (O, I).
        dtype: the type of the matrix before it was quantised.
    """

    words: torch.Tensor
    table: torch.Tensor
    group_size: int
    shape: tuple[int, int]
    dtype: torch.dtype

    @classmethod
    def of(cls, w: QuantizedWeights, device: torch.device | str) -> "_Int4Matrix":
        """Takes the numbers out of the words, so that for a moment each number of this one matrix takes 4 bytes."""
        padding = -w.shape[0] % 16
        numbers = F.pad(words_to_numbers(w.weight, 4), (0, 0, 0, padding)).to(device)
        table = F.pad(kernel_constants(w.scales, w.biases, torch.bfloat16), (0, 0, 0, padding)).to(device)
        if _on_cuda(numbers):
            pairs = (numbers[:, ::2] << 4 | numbers[:, 1::2]).to(torch.uint8)
            # The last argument is how many blocks of 16 columns lie together: 2, 4 or 8 of them.
            words = torch._convert_weight_to_int4pack(pairs, 8 if w.shape[1] % 128 == 0 else 2)
        else:
            words = torch._convert_weight_to_int4pack_for_cpu(numbers, 1)
        return cls(words, table, w.group_size, w.shape, w.dtype)

    @property
    def nbytes(self) -> int:
        return self.words.nbytes + self.table.nbytes

    @property
    def device(self) -> torch.device:
        return self.words.device

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x @ Wᵀ, (..., I) to (..., O), in x's type; x and the product are rounded to bf16."""
        multiply = torch._weight_int4pack_mm if _on_cuda(x) else torch._weight_int4pack_mm_for_cpu
        rows = x.reshape(-1, x.shape[-1]).to(torch.bfloat16)
        out = multiply(rows, self.words, self.group_size, self.table)[:, : self.shape[0]]
        return out.reshape(*x.shape[:-1], self.shape[0]).to(x.dtype)


def kernel_constants(scales: torch.Tensor, biases: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """What the kernel multiplies q by and adds, in its own form: its numbers are (q - 8) · scale + zero.

    Args:
        scales, biases: (O, I / group_size); ours are q · scale + bias.
        dtype: the type that the kernel computes in.

    Returns:
        (I / group_size, O, 2) in `dtype`, contiguous: scale and zero side by side, one group of all outputs after the
        other.
    """
    # TASK 2.3.1: which zero gives the same number? Compute it in float32: bias and 8 scales nearly cancel.
    raise NotImplementedError("week 2 day 3 task 1: kernel_constants")


def quantized_matmul_device(
    scales: torch.Tensor,
    biases: torch.Tensor,
    group_size: int,
    bits: int,
    a: torch.Tensor,
    b: torch.Tensor,
    transpose_b: bool = False,
) -> torch.Tensor:
    """`quantized_matmul_tiled` by the device's own kernel, which dequantises as it multiplies.

    The kernel is torch's int4 product x @ Wᵀ. It has its own layout, which this call makes anew every time: a model
    holds what `prepare_weights` makes. It computes in bf16, whatever a's type. torch's int8 kernel knows no groups:
    8 bits, and a @ W, go in Day 2's tiles, and so do 4 bits where there is no kernel.

    Args:
        scales, biases, group_size, bits, a, b, transpose_b: see `quantized_matmul_tiled`.

    Returns:
        (..., I), or (..., O) with `transpose_b`, in a's type.

    Raises:
        ValueError: as `quantized_matmul_tiled`.
    """
    check_product(scales, biases, group_size, bits, a, b, transpose_b)
    # TASK 2.3.1: `prepare_weights` makes the kernel's form, where there is one; everything else goes in tiles.
    raise NotImplementedError("week 2 day 3 task 1: quantized_matmul_device")


def quantized_linear(x: torch.Tensor, w: QuantizedWeights, bias: torch.Tensor | None = None) -> torch.Tensor:
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
    raise NotImplementedError("week 2 day 3 task 3: quantized_linear")


def in_tiles(x: torch.Tensor, w: QuantizedWeights) -> bool:
    """Whether x has so many rows that a CPU does better to dequantise W tile by tile. Given."""
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
