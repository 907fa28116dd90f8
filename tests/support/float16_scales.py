"""Quantised matrices with scales and biases in float16, as files for other engines have them."""

from typing import Any

import numpy as np


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
