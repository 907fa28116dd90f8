"""Numbers in words of 32 bits, and quantised matrices with float16 scales, as files for other engines have them."""

from typing import Any

import numpy as np

FORMATS = [(group_size, bits) for group_size in (32, 64, 128) for bits in (4, 8)]


def as_words(numbers: np.ndarray, bits: int) -> np.ndarray:
    """Words of 32 bits: the first number of a word is in its lowest bits."""
    neighbours = numbers.astype(np.uint32).reshape(*numbers.shape[:-1], -1, 32 // bits)
    return np.bitwise_or.reduce(neighbours << np.arange(0, 32, bits, dtype=np.uint32), axis=-1)


def in_float16(
    b: Any, rng: Any, rows: int, columns: int, bits: int, float_dtype: str | None = None
) -> tuple[Any, np.ndarray]:
    """`QuantizedWeights` in groups of 32, and the matrix in float64.

    Number and scale nearly cancel the bias, so that rounding one of them shows; the scales of the first row are
    subnormal.
    """
    near = rng.integers(-3, 4, size=(rows, columns)) + 2 ** (bits - 1)
    scales = rng.uniform(0.5, 1, size=(rows, columns // 32)) * 2.0**-bits
    scales[0] *= 2.0**-15
    scales = scales.astype(np.float16)
    biases = (-(2 ** (bits - 1) + 0.3) * scales).astype(np.float16)
    w = near.reshape(rows, -1, 32) * scales[..., None].astype(float) + biases[..., None].astype(float)
    words = b.numbers_to_words(b.array(near), bits)
    parts = words, b.array(scales, "float16"), b.array(biases, "float16")
    dtype = None if float_dtype is None else b.dtype(float_dtype)
    return b.QuantizedWeights(*parts, 32, bits, float_dtype=dtype), w.reshape(rows, columns)
