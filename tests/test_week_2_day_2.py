"""Week 2 Day 2: weights in 4 and 8 bits, and a product that never holds them whole. Oracle: NumPy.

Rulers are compared bit for bit, so their oracle computes in float32, as MLX does; products are checked in float64.
"""

import numpy as np
import pytest

from support.close import OR_EARLIER, assert_close
from support.quantized import FORMATS, as_words


def quantized32(w: np.ndarray, group_size: int, bits: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Numbers, scales and biases in MLX's rule, every step in float32. w is (O, I)."""
    levels = np.float32(2**bits - 1)
    groups = w.astype(np.float32).reshape(w.shape[0], -1, group_size)
    low, high = groups.min(-1, keepdims=True), groups.max(-1, keepdims=True)
    low_is_larger = np.abs(low) > np.abs(high)
    step = np.maximum((high - low) / levels, np.float32(1e-7))
    scale, edge = np.where(low_is_larger, step, -step), np.where(low_is_larger, low, high)
    marks = np.rint(edge / scale)
    whole = np.where(marks == 0, np.float32(1), marks)
    scale, bias = np.where(marks == 0, scale, edge / whole), np.where(marks == 0, np.float32(0), edge)
    numbers = np.clip(np.rint((groups - bias) / scale), 0, levels)
    return numbers.reshape(w.shape), scale[..., 0], bias[..., 0]


def exact(group_size: int, bits: int, rng, rows: int = 7, groups: int = 3):
    """Numbers, scales and biases whose products and sums are exact in float32, and the matrix that they stand for."""
    numbers = rng.integers(0, 2**bits, size=(rows, groups * group_size))
    scales, biases = (rng.integers(-64, 64, size=(2, rows, groups)) / 64).astype(np.float32)
    w = numbers.reshape(rows, groups, -1) * scales[..., None] + biases[..., None]
    return numbers, scales, biases, w.reshape(rows, -1)


def words_of(b, numbers: np.ndarray, bits: int):
    return b.array(as_words(numbers, bits))


def typed(b, values: np.ndarray, dtype: str) -> np.ndarray:
    """The values rounded to a type of the port, as NumPy float32."""
    return b.numpy(b.array(values, dtype)).astype(np.float32)


@pytest.mark.task("2.2.1")
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("batch", [(), (3,), (2, 3)])
def test_a_word_holds_the_first_number_lowest(b, rng, bits, batch):
    """32 / bits neighbours share a word; the first one has its lowest bits, and the highest bit is no sign."""
    numbers = rng.integers(0, 2**bits, size=(*batch, 24))
    numbers[..., -1] = 2**bits - 1
    words = b.numpy(b.numbers_to_words(b.array(numbers), bits))
    assert words.dtype == np.uint32, f"a word is uint32, not {words.dtype}"
    idea = "number i of a word is shifted by i · bits: the first one is in the lowest bits"
    assert_close(words, as_words(numbers, bits), atol=0, rtol=0, idea=idea)


@pytest.mark.task("2.2.1")
@pytest.mark.parametrize("bits", [4, 8])
def test_words_are_made_of_numbers_of_a_floating_type_too(b, rng, bits):
    """What comes out of rounding is a float; it goes into a word all the same."""
    numbers = rng.integers(0, 2**bits, size=(3, 16))
    words = b.numpy(b.numbers_to_words(b.array(numbers, "float32"), bits))
    idea = "whole numbers in float32 become words as whole numbers" + OR_EARLIER
    assert_close(words, as_words(numbers, bits), atol=0, rtol=0, idea=idea)


@pytest.mark.task("2.2.1")
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("batch", [(), (3,), (2, 3)])
def test_words_give_the_numbers_back(b, rng, bits, batch):
    """Every number from 0 to 2^bits - 1, in its order; the largest is 15 or 255, and none is negative."""
    numbers = rng.integers(0, 2**bits, size=(*batch, 24))
    numbers[..., ::3] = 2**bits - 1
    actual = b.numpy(b.words_to_numbers(words_of(b, numbers, bits), bits))
    assert np.issubdtype(actual.dtype, np.integer), f"the numbers have an integer type, not {actual.dtype}"
    assert actual.min() >= 0, "a number is negative: 4 bits are 0 to 15, the word's highest bit is no sign"
    idea = "number i of a word comes from its bits i · bits and up: the first one is in the lowest bits"
    assert_close(actual, numbers, atol=0, rtol=0, idea=idea)


def assert_quantized(b, w: np.ndarray, group_size: int, bits: int, dtype: str, idea: str) -> None:
    """Scales, biases and words of `w`, rounded to `dtype`, equal the oracle's in every bit."""
    weight, scales, biases = b.quantize_weights(b.array(w, dtype), group_size, bits)
    numbers, expected_scales, expected_biases = quantized32(typed(b, w, dtype), group_size, bits)
    for name, array in (("scales", scales), ("biases", biases)):
        assert array.dtype == b.dtype(dtype), f"{name} must have the type of w, {dtype}"
    exactly = {"atol": 0, "rtol": 0}
    assert_close(b.numpy(biases), typed(b, expected_biases, dtype), **exactly, idea=f"biases: {idea}")
    assert_close(b.numpy(scales), typed(b, expected_scales, dtype), **exactly, idea=f"scales: {idea}")
    words = b.numpy(weight)
    assert words.dtype == np.uint32, f"the words are uint32, not {words.dtype}"
    idea = "words: q is the nearest whole number to (w - bias) / scale, from 0 to 2^bits - 1" + OR_EARLIER
    assert_close(words, as_words(numbers, bits), **exactly, idea=idea)


@pytest.mark.task("2.2.2")
def test_quantize_keeps_zeros(b, rng):
    """Where a group has both signs, 0 is a mark of its ruler: a weight of 0 stays 0."""
    w = rng.normal(size=(6, 128)).astype(np.float32)
    w[:, ::5] = 0
    _, scales, biases = map(b.numpy, b.quantize_weights(b.array(w), 32, 4))
    marks = -biases.astype(np.float64) / scales
    idea = "bias / scale must be whole, so that 0 is a mark: divide the edge by a whole number of steps"
    assert_close(marks, np.rint(marks), atol=1e-4, idea=idea)


@pytest.mark.task("2.2.2")
@pytest.mark.parametrize(("group_size", "bits"), FORMATS)
def test_quantize_is_never_far_away(b, rng, group_size, bits):
    """|w - (q·scale + bias)| is at most half a scale on the ruler, and at most one beyond its far end."""
    w = rng.normal(size=(9, 384)).astype(np.float32)
    weight, scales, biases = map(b.numpy, b.quantize_weights(b.array(w), group_size, bits))
    shifts = np.arange(0, 32, bits, dtype=np.uint32)
    q = ((weight[..., None] >> shifts) & (2**bits - 1)).reshape(9, -1, group_size).astype(np.float64)
    groups, (scale, bias) = (
        w.reshape(9, -1, group_size),
        (x[..., None].astype(np.float64) for x in (scales, biases)),
    )
    errors = np.abs(groups - (q * scale + bias)) / np.abs(scale)
    far_end = bias + (2**bits - 1) * scale
    on_ruler = (groups - far_end) * np.sign(scale) <= 0
    worst, most = errors[on_ruler].max(), errors.max()
    why = "round to the nearest one, not down"
    if most > 1.001:
        why = "scale, bias and q are not of one ruler: a sign, the edge, the number of steps, or a q that is no q"
    assert worst <= 0.501, f"a number is {worst:.2f} scales from its mark: {why}"
    assert most <= 1.001, f"a number beyond the far end is {most:.2f} scales from it, 1 is the most: {why}"


@pytest.mark.task("2.2.2")
@pytest.mark.parametrize(
    ("group_size", "bits", "dtype"),
    [(*form, ("float32", "bfloat16", "float16")[i % 3]) for i, form in enumerate(FORMATS)],
)
def test_quantize_equals_the_oracle_bit_for_bit(b, rng, group_size, bits, dtype):
    """Groups along a row, the larger edge as bias, a scale that divides it, everything in float32 until the end."""
    w = rng.normal(size=(5, 384)) * rng.uniform(0.01, 3, size=(5, 1))
    idea = (
        "along a row, the larger edge of a group is its bias, and edge / scale is a whole number of marks; "
        "computed in float32, rounded to w's type at the end"
    )
    assert_quantized(b, w, group_size, bits, dtype, idea)


@pytest.mark.task("2.2.2")
@pytest.mark.parametrize("bits", [4, 8])
def test_quantize_handles_every_kind_of_group(b, rng, bits):
    """All zeros, all equal, all positive, all negative, both ends equally far: no NaN, and a rule for each."""
    noise = rng.uniform(0.1, 0.9, size=(2, 64))
    ends = np.tile([-0.6, 0.6], 32)  # whose range / 255 is the same number as its product with 1 / 255
    w = np.stack([np.zeros(64), np.full(64, 0.3), np.full(64, -0.3), noise[0], -noise[1], ends, -ends * 1e-9])
    _, scales, biases = map(b.numpy, b.quantize_weights(b.array(w), 64, bits))
    for name, array in (("scales", scales), ("biases", biases)):
        assert np.isfinite(array).all(), f"without a range {name} is not finite: the scale is at least 1e-7"
    idea = (
        "a scale of at least 1e-7; a bias of 0 where the edge is less than half a mark; where both ends are "
        "equally far, the upper one is the bias"
    )
    assert_quantized(b, w, 64, bits, "float32", idea)


@pytest.mark.task("2.2.3")
@pytest.mark.parametrize(("group_size", "bits"), FORMATS)
def test_dequantize_equals_numpy(b, rng, group_size, bits):
    """q · scale + bias, with the scale and the bias of the number's own group; here every step is exact."""
    numbers, scales, biases, w = exact(group_size, bits, rng)
    arrays = words_of(b, numbers, bits), b.array(scales), b.array(biases)
    actual = b.numpy(b.dequantize_weights(*arrays, group_size, bits))
    idea = f"q · scale + bias, with one scale and one bias for each {group_size} neighbours of a row"
    assert_close(actual, w, atol=0, rtol=0, idea=idea)


@pytest.mark.task("2.2.3")
def test_dequantize_takes_any_leading_axes(b, rng):
    """One row, or rows that a batch of tokens picked: (..., I · bits / 32) words become (..., I)."""
    numbers, scales, biases, w = exact(32, 4, rng, rows=6)
    for shape in ((6,), (2, 3), (1, 6)):
        parts = [part.reshape(*shape, -1) for part in (as_words(numbers, 4), scales, biases)]
        actual = b.numpy(b.dequantize_weights(*map(b.array, parts), 32, 4))
        idea = f"words with the leading axes {shape} keep them" + OR_EARLIER
        assert_close(actual, w.reshape(*shape, -1), atol=0, rtol=0, idea=idea)
    one = [part[2] for part in (as_words(numbers, 4), scales, biases)]
    actual = b.numpy(b.dequantize_weights(*map(b.array, one), 32, 4))
    assert_close(actual, w[2], atol=0, rtol=0, idea="a row alone has no leading axis" + OR_EARLIER)


@pytest.mark.task("2.2.3")
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_dequantize_rounds_once(b, rng, dtype):
    """scales and biases of 16 bits: computed in float32, and only the sum is rounded to their type."""
    numbers = rng.integers(0, 256, size=(4, 128))
    scales, biases = (b.array(part, dtype) for part in rng.normal(size=(2, 4, 2)))
    actual = b.dequantize_weights(words_of(b, numbers, 8), scales, biases, 64, 8)
    assert actual.dtype == b.dtype(dtype), f"the numbers must have the type of the scales, {dtype}"
    groups = numbers.reshape(4, 2, 64) * b.numpy(scales)[..., None].astype(np.float32)
    expected = typed(b, (groups + b.numpy(biases)[..., None]).reshape(4, -1), dtype)
    idea = (
        "q · scale + bias in float32, rounded to the type of the scales once: not after the product"
        + OR_EARLIER
    )
    assert_close(b.numpy(actual), expected, atol=0, rtol=0, idea=idea)


@pytest.mark.task("2.2.3")
def test_dequantize_does_not_overflow_in_float16(b):
    """15 · 7500 is no float16, but 15 · 7500 - 60000 is."""
    scales, biases = b.array([[7500.0]], "float16"), b.array([[-60000.0]], "float16")
    words = words_of(b, np.full((1, 32), 15), 4)
    actual = b.numpy(b.dequantize_weights(words, scales, biases, 32, 4))
    idea = "q · scale may be larger than any float16 where the sum is not: compute in float32"
    assert_close(actual, np.full((1, 32), 52500.0), rtol=1e-3, idea=idea)


def product(b, a: np.ndarray, parts, group_size: int, bits: int, transpose_b: bool, dtype: str = "float32"):
    numbers, scales, biases, _ = parts
    arrays = b.array(scales, dtype), b.array(biases, dtype), group_size, bits, b.array(a, dtype)
    return b.quantized_matmul_tiled(*arrays, words_of(b, numbers, bits), transpose_b)


@pytest.mark.task("2.2.4")
@pytest.mark.parametrize(
    ("batch", "rows", "group_size", "bits"),
    [((), 5, 32, 4), ((3,), 128, 64, 8), ((2, 3), 300, 32, 4), ((), 300, 64, 8)],
)
def test_tiled_product_with_the_transpose(b, rng, group_size, bits, rows, batch):
    """transpose_b: a (..., I) @ Wᵀ is (..., O), one output a row of W, for any number of rows."""
    parts = exact(group_size, bits, rng, rows=rows)
    a = rng.normal(size=(*batch, parts[3].shape[1]))
    idea = f"with transpose_b, row o of W makes output o, for all {rows} rows: the last tile may be smaller"
    actual = b.numpy(product(b, a, parts, group_size, bits, True))
    assert_close(actual, a @ parts[3].T, atol=2e-3, rtol=1e-4, idea=idea)


@pytest.mark.task("2.2.4")
@pytest.mark.parametrize(("batch", "rows"), [((), 5), ((3,), 128), ((2, 3), 300)])
def test_tiled_product_without_the_transpose(b, rng, rows, batch):
    """a (..., O) @ W is (..., I): every tile of rows adds to every output."""
    parts = exact(32, 4, rng, rows=rows)
    a = rng.normal(size=(*batch, rows))
    idea = "without transpose_b, a (..., O) meets the rows of W, and the tiles' products are added up"
    assert_close(b.numpy(product(b, a, parts, 32, 4, False)), a @ parts[3], atol=2e-3, rtol=1e-4, idea=idea)


@pytest.mark.task("2.2.4")
def test_tiled_product_knows_a_square_matrix_from_its_transpose(b, rng):
    """Where O = I both products have a shape; the default is a @ W."""
    parts = exact(32, 4, rng, rows=96)
    a = rng.normal(size=(2, 96))
    default = b.quantized_matmul_tiled(
        b.array(parts[1]), b.array(parts[2]), 32, 4, b.array(a), words_of(b, parts[0], 4)
    )
    for actual, expected, what in (
        (default, a @ parts[3], "transpose_b=False, the default, is a @ W"),
        (product(b, a, parts, 32, 4, True), a @ parts[3].T, "transpose_b=True is a @ Wᵀ"),
    ):
        assert_close(b.numpy(actual), expected, atol=2e-3, rtol=1e-4, idea=what + OR_EARLIER)


@pytest.mark.task("2.2.4")
@pytest.mark.parametrize("transpose_b", [True, False])
def test_tiled_product_keeps_the_type_of_a(b, rng, transpose_b):
    """float32 scales and a bf16 `a` give bf16, near the exact product."""
    numbers, scales, biases, w = exact(32, 4, rng, rows=96)
    a = rng.normal(size=(2, 96))
    arrays = b.array(scales), b.array(biases), 32, 4, b.array(a, "bfloat16")
    actual = b.quantized_matmul_tiled(*arrays, words_of(b, numbers, 4), transpose_b)
    assert actual.dtype == b.dtype("bfloat16"), "the product must have the type of a"
    expected = typed(b, a, "bfloat16") @ (w.T if transpose_b else w)
    size = np.abs(expected).max()
    assert_close(
        b.numpy(actual), expected, atol=0.02 * size, idea="the product in bf16 is far off" + OR_EARLIER
    )


@pytest.mark.task("2.2.4")
def test_tiled_product_adds_its_tiles_in_float32(b):
    """Rows of ones: a sum in bf16 that is rounded after each tile loses nearly 1 in 100."""
    rows = 2048 + 64
    ones, scales, biases = np.ones((rows, 32)), np.full((rows, 1), 1.0), np.zeros((rows, 1))
    a = np.ones((1, rows))
    a[0, 64:] = (
        1.0078125  # 64 of them are 64.5, which bf16 has; beyond 128 it counts in ones, and beyond 512 in fours
    )
    actual = b.numpy(product(b, a, (ones, scales, biases, None), 32, 4, False, "bfloat16"))
    idea = "the tiles' products are added in float32: a sum in bf16 is rounded at every tile"
    assert_close(actual, np.full((1, 32), a.sum()), atol=0, rtol=2**-8, idea=idea)


@pytest.mark.task("2.2.4")
@pytest.mark.parametrize("transpose_b", [True, False])
def test_tiled_product_never_holds_the_matrix(b, rng, transpose_b):
    """W has 3,000 rows of 384: as numbers 4.6 MB. The product holds a third of that at most, its result included."""
    rows, columns = 3000, 384
    words = b.array(rng.integers(0, 2**32, size=(rows, columns // 8), dtype=np.uint32))
    scales, biases = (b.array(part) for part in rng.normal(size=(2, rows, columns // 64)))
    a = b.array(rng.normal(size=(2, columns if transpose_b else rows)))
    peak = b.peak_bytes(lambda: b.quantized_matmul_tiled(scales, biases, 64, 4, a, words, transpose_b))
    whole = rows * columns * 4
    assert peak < whole / 3, (
        f"the product held {peak:,} bytes beside its inputs, and the whole matrix has {whole:,}: dequantise some rows, "
        "multiply, and let them go before the next ones (a lazy library must be told to: evaluate each product)"
    )
