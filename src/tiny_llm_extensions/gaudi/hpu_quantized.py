"""Matrices of 4 bits on a Gaudi: dequantised in the graph, then an ordinary product. Not run on a Gaudi."""

from dataclasses import dataclass

import torch

from tiny_llm_engine.arrays.torch import hpu

SHIFTS = range(0, 32, 4)  # of the eight numbers in a word


def convert_from_uint4(
    words: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    """(q - zero) · scale for words of 4 bits along the outputs. It dequantises; it does not multiply.

    Args:
        words: (I, O / 8) int32: bits 4j to 4j + 3 of word c of a row hold its column 8c + j.
        scales: (I / group_size, O), bf16.
        zeros: (I / group_size, O / 8) int32, whole numbers from 0 to 15, packed in the same way.
        dtype: the type of the result.

    Returns:
        (I, O).
    """
    # Intel's page has the operator in lazy mode, and vLLM's plug-in calls it in compiled code: not one by one in eager.
    if words.device.type != "hpu" or not (torch.compiler.is_compiling() or hpu.detect().lazy):
        return convert_from_uint4_twin(words, scales, zeros, dtype)
    return torch.ops.hpu.convert_from_uint4(words, scales, zeros, dtype)


def convert_from_uint4_twin(
    words: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    q = unpacked(words).unflatten(0, (scales.shape[0], -1))
    zeros, scales = unpacked(zeros).unsqueeze(1), scales.unsqueeze(1)
    return ((q - zeros) * scales).flatten(0, 1).to(dtype)


def unpacked(words: torch.Tensor) -> torch.Tensor:
    """(..., W) int32 to (..., 8 · W) numbers."""
    return torch.stack([words >> shift & 15 for shift in SHIFTS], dim=-1).flatten(-2)


def packed(numbers: torch.Tensor) -> torch.Tensor:
    """The inverse of `unpacked`."""
    parts = numbers.int().unflatten(-1, (-1, len(SHIFTS))).unbind(-1)
    words = torch.zeros_like(parts[0])
    for part, shift in zip(parts, SHIFTS, strict=True):
        words |= part << shift
    return words


def zero_points(scales: torch.Tensor, biases: torch.Tensor) -> torch.Tensor | None:
    """The zero point of each group, for which q · scale + bias is (q - zero) · scale.

    Args:
        scales, biases: both of the same shape.

    Returns:
        Whole numbers from 0 to 15 of that shape, int32. None if some group has no such zero, to within the rounding of
        `biases`; a group whose numbers all have one sign has none.
    """
    wide, bias = scales.float(), biases.float()
    zeros = torch.round(-bias / wide)
    near = (bias + zeros * wide).abs() <= torch.finfo(biases.dtype).eps * bias.abs()
    fits = near & (zeros >= 0) & (zeros <= 15)
    return zeros.int() if fits.all() else None


def uint4_matrix(
    numbers: torch.Tensor, scales: torch.Tensor, biases: torch.Tensor, device: torch.device | str
) -> "Uint4Matrix | None":
    """Lays out a matrix for `convert_from_uint4`, on the CPU, and moves it to `device`.

    Args:
        numbers: (O, I) whole numbers from 0 to 15.
        scales, biases: (O, I / group_size).

    Returns:
        None if the matrix has no whole zeros, or O is not a multiple of 8: its words are then dequantised in the graph.
    """
    zeros = zero_points(scales, biases)
    if zeros is None or numbers.shape[0] % 8:
        return None
    words, narrow, zeros = (part.to(device) for part in uint4_parts(numbers, scales, zeros))
    return Uint4Matrix(words, narrow, zeros, (numbers.shape[0], numbers.shape[1]), scales.dtype)


def uint4_parts(
    numbers: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Words, scales and zeros of `convert_from_uint4`, from numbers (O, I) and scales and zeros (O, I / group_size)."""
    words, zero_words = (packed(part.T) for part in (numbers, zeros))
    return words, scales.T.to(torch.bfloat16).contiguous(), zero_words


@dataclass(frozen=True, eq=False)
class Uint4Matrix:
    """A matrix (O, I) as `convert_from_uint4` reads it: dequantised in the graph, then an ordinary product."""

    words: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor
    shape: tuple[int, int]
    dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        return self.words.nbytes + self.scales.nbytes + self.zeros.nbytes

    @property
    def device(self) -> torch.device:
        return self.words.device

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x @ Wᵀ, (..., I) to (..., O), in x's type."""
        return x @ convert_from_uint4(self.words, self.scales, self.zeros, torch.bfloat16).to(x.dtype)
