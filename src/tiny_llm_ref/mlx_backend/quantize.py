"""Quantised weights: the groups of a row each have their own scale and bias, and 16 or 256 levels."""

import mlx.core as mx

from tiny_llm_engine.arrays.checks import check_groups, check_product, check_quantized

TILE_ROWS = 128  # rows of a quantised matrix that are dequantised at the same time
SMALLEST_SCALE = 1e-7  # where all numbers of a group are equal, their range is 0


def numbers_to_words(numbers: mx.array, bits: int) -> mx.array:
    """Packs 32 / bits neighbours of a row into one word, the first in the lowest bits.

    Args:
        numbers: (..., I) whole numbers from 0 to 2^bits - 1, of any type; I is a multiple of 32 / bits.
        bits: 4 or 8.

    Returns:
        (..., I · bits / 32) words, uint32.
    """
    # TASK 2.2.1: shift each neighbour to its own bits, and combine them.
    shifts = mx.arange(0, 32, bits, dtype=mx.uint32)
    neighbours = numbers.astype(mx.uint32).reshape(*numbers.shape[:-1], -1, 32 // bits)
    return mx.sum(neighbours << shifts, axis=-1)


def words_to_numbers(words: mx.array, bits: int) -> mx.array:
    """The inverse of `numbers_to_words`.

    Args:
        words: (..., W) words, uint32.
        bits: 4 or 8.

    Returns:
        (..., W · 32 / bits) whole numbers from 0 to 2^bits - 1, in an integer type.
    """
    # TASK 2.2.1: shift each number to the lowest bits, and mask out the rest.
    shifts = mx.arange(0, 32, bits, dtype=mx.uint32)
    return ((words[..., None] >> shifts) & (2**bits - 1)).flatten(-2)


def quantize_weights(w: mx.array, group_size: int = 64, bits: int = 4) -> tuple[mx.array, mx.array, mx.array]:
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
    levels = 2**bits - 1
    groups = w.astype(mx.float32).reshape(w.shape[0], -1, group_size)
    low, high = (edge(groups, axis=-1, keepdims=True) for edge in (mx.min, mx.max))
    low_is_larger = mx.abs(low) > mx.abs(high)
    scales = mx.maximum((high - low) / levels, SMALLEST_SCALE)
    scales = mx.where(low_is_larger, scales, -scales)
    edge = mx.where(low_is_larger, low, high)
    marks = mx.round(edge / scales)
    scales = mx.where(marks == 0, scales, edge / marks)
    biases = mx.where(marks == 0, 0.0, edge)
    numbers = mx.clip(mx.round((groups - biases) / scales), 0, levels)
    scales, biases = (part.squeeze(-1).astype(w.dtype) for part in (scales, biases))
    return numbers_to_words(numbers.flatten(-2), bits), scales, biases


def dequantize_weights(
    weight: mx.array, scales: mx.array, biases: mx.array, group_size: int, bits: int
) -> mx.array:
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
    groups = words_to_numbers(weight, bits).reshape(*scales.shape, group_size).astype(mx.float32)
    numbers = groups * scales.astype(mx.float32)[..., None] + biases.astype(mx.float32)[..., None]
    return numbers.flatten(-2).astype(scales.dtype)


def quantized_matmul_tiled(
    scales: mx.array,
    biases: mx.array,
    group_size: int,
    bits: int,
    a: mx.array,
    b: mx.array,
    transpose_b: bool = False,
) -> mx.array:
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
    # A lazy graph may hold all tiles at once: evaluate each product, so that its tile is freed.
    def tile(start: int) -> mx.array:
        rows = slice(start, start + TILE_ROWS)
        return dequantize_weights(b[rows], scales[rows], biases[rows], group_size, bits).astype(a.dtype)

    outputs, total = [], mx.zeros((*a.shape[:-1], scales.shape[1] * group_size))
    for start in range(0, scales.shape[0], TILE_ROWS):
        if transpose_b:
            part = a @ tile(start).T
            outputs.append(part)
        else:
            part = total = total + (a[..., start : start + TILE_ROWS] @ tile(start)).astype(mx.float32)
        mx.eval(part)
    return mx.concatenate(outputs, axis=-1) if transpose_b else total.astype(a.dtype)
