"""Quantised weights: the groups of a row each have their own scale and bias, and 16 or 256 levels."""

import torch

from tiny_llm_engine.arrays.checks import check_groups, check_product, check_quantized

TILE_ROWS = 128  # rows of a quantised matrix that are dequantised at the same time
SMALLEST_SCALE = 1e-7  # where all numbers of a group are equal, their range is 0


def numbers_to_words(numbers: torch.Tensor, bits: int) -> torch.Tensor:
    """Packs 32 / bits neighbours of a row into one word, the first in the lowest bits.

    Args:
        numbers: (..., I) whole numbers from 0 to 2^bits - 1, of any type; I is a multiple of 32 / bits.
        bits: 4 or 8.

    Returns:
        (..., I · bits / 32) words, uint32.
    """
    # TASK 2.2.1: shift each neighbour to its own bits, and combine them.
    # torch cannot shift uint32: combine in int64, where bit 31 is not the sign.
    raise NotImplementedError("week 2 day 2 task 1: numbers_to_words")


def words_to_numbers(words: torch.Tensor, bits: int) -> torch.Tensor:
    """The inverse of `numbers_to_words`.

    Args:
        words: (..., W) words, uint32.
        bits: 4 or 8.

    Returns:
        (..., W · 32 / bits) whole numbers from 0 to 2^bits - 1, in an integer type.
    """
    # TASK 2.2.1: shift each number to the lowest bits, and mask out the rest.
    # torch cannot shift uint32: view the words as int32, and mask out the sign bits that the shift brings in.
    # On a CPU, numbers of 8 bits are bytes already, the lowest one first: seven times faster on our machine.
    raise NotImplementedError("week 2 day 2 task 1: words_to_numbers")


def quantize_weights(
    w: torch.Tensor, group_size: int = 64, bits: int = 4
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Quantises `w` to q · scale + bias with integers q: MLX's affine format, bit for bit.

    The bias of a group is its edge: its minimum or its maximum, whichever is larger in magnitude. The edge is a whole
    multiple of the scale, so that 0 is one of the levels. The scale is negative where the edge is the maximum.

    Args:
        w: (O, I) in a floating-point type.
        group_size: neighbours of a row that share one scale and one bias: 32, 64 or 128.
        bits: 4 or 8.

    Returns:
        weight: (O, I · bits / 32) words, uint32. scales, biases: (O, I / group_size), in w's type.

    Raises:
        ValueError: `group_size` or `bits` has another value, or I is not a multiple of `group_size`.
    """
    check_groups(w.shape[-1], group_size, bits)
    # TASK 2.2.2: find the scale and bias of each group, then the nearest level of each number. All in float32.
    # Begin with scale = range / (2^bits - 1), then adjust it a little: edge / scale must be a whole number.
    raise NotImplementedError("week 2 day 2 task 2: quantize_weights")


def dequantize_weights(
    weight: torch.Tensor, scales: torch.Tensor, biases: torch.Tensor, group_size: int, bits: int
) -> torch.Tensor:
    """Dequantises a matrix: q · scale + bias for each of its numbers.

    Args:
        weight: (..., I · bits / 32) words, uint32.
        scales, biases: (..., I / group_size).
        group_size: 32, 64 or 128.
        bits: 4 or 8.

    Returns:
        (..., I) in the type of `scales`; computed in float32 and rounded once.

    Raises:
        ValueError: `group_size` or `bits` has another value, or the three shapes do not fit together.
    """
    check_quantized(weight, scales, biases, group_size, bits)
    # TASK 2.2.3: unpack the words, split the numbers into groups, apply each group's scale and bias.
    # In float16, 15 · scale can overflow where the sum does not.
    raise NotImplementedError("week 2 day 2 task 3: dequantize_weights")


def quantized_matmul_tiled(
    scales: torch.Tensor,
    biases: torch.Tensor,
    group_size: int,
    bits: int,
    a: torch.Tensor,
    b: torch.Tensor,
    transpose_b: bool = False,
) -> torch.Tensor:
    """a @ W or a @ Wᵀ for a quantised (O, I) matrix W, dequantised TILE_ROWS rows at a time.

    Args:
        scales, biases: (O, I / group_size).
        group_size: 32, 64 or 128.
        bits: 4 or 8.
        a: (..., O), or (..., I) with `transpose_b`.
        b: (O, I · bits / 32) words, uint32.
        transpose_b: multiply by Wᵀ, as a linear layer does.

    Returns:
        (..., I), or (..., O) with `transpose_b`, in a's type.

    Raises:
        ValueError: as for `dequantize_weights`, or a's last axis does not fit.
    """
    check_product(scales, biases, group_size, bits, a, b, transpose_b)

    # TASK 2.2.4: a tile is some rows of W. Transposed, it gives some of the outputs; else it adds to all of them.
    # A sum of many tiles in bf16 would be rounded at every step: add in float32.
    raise NotImplementedError("week 2 day 2 task 4: quantized_matmul_tiled")
