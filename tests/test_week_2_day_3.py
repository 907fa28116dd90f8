"""Week 2 Day 3: quantised weights on the device's own kernel, and in a model. Oracle: NumPy in float64.

A kernel may compute in bf16 whatever it is given, as torch's int4 product does on a CPU: tolerances are those of bf16.
"""

import numpy as np
import pytest

from support.close import OR_EARLIER, assert_close
from support.quantized import FORMATS, as_words
from tiny_llm_course.grading.small_models import random_weights, small_model
from tiny_llm_engine.models.checkpoint import Checkpoint

BF16 = 2**-6  # of the largest output: products of numbers that were rounded to 8 bits, and a rounded sum


def parts_of(b, rng, rows: int, groups: int, group_size: int, bits: int, dtype: str = "float32"):
    """Words, scales and biases of this port, and the matrix that they stand for; biases of both signs and sizes."""
    numbers = rng.integers(0, 2**bits, size=(rows, groups * group_size))
    scales = (
        rng.uniform(0.5, 1.5, size=(rows, groups)) * rng.choice([-1, 1], size=(rows, groups)) * 2.0**-bits
    )
    biases = -scales * rng.integers(0, 2**bits, size=scales.shape)
    arrays = b.array(as_words(numbers, bits)), b.array(scales, dtype), b.array(biases, dtype)
    scales, biases = (b.numpy(part).astype(np.float64)[..., None] for part in arrays[1:])
    w = numbers.reshape(rows, groups, -1) * scales + biases
    return arrays, w.reshape(rows, -1)


def rounded(b, values: np.ndarray, dtype: str = "bfloat16") -> np.ndarray:
    return b.numpy(b.array(values, dtype)).astype(np.float64)


def assert_near(actual: np.ndarray, expected: np.ndarray, idea: str) -> None:
    assert_close(actual, expected, atol=BF16 * max(1e-9, np.abs(expected).max()), rtol=0, idea=idea)


@pytest.mark.task("2.3.1")
def test_device_product_of_large_biases_is_exact(b):
    """Scale 1 and bias -8 or 1000: whole numbers that bf16 has, so that a wrong zero or sign cannot hide."""
    numbers = np.tile(np.arange(16), (16, 2))
    for bias in (-8.0, 0.0, -1000.0):
        words, scales, biases = (
            b.array(as_words(numbers, 4)),
            b.array(np.ones((16, 1))),
            b.array(np.full((16, 1), bias)),
        )
        a = b.array(np.eye(32))
        actual = b.numpy(b.quantized_matmul_device(scales, biases, 32, 4, a, words, True))
        idea = f"q + ({bias:g}), read one by one: q counts from 0 to 15, and the bias is added"
        assert_close(actual, (numbers + bias).T, atol=0, rtol=2**-7, idea=idea)


@pytest.mark.task("2.3.1")
@pytest.mark.parametrize(
    ("group_size", "bits", "batch"), [(*form, ((), (3,), (2, 3))[i % 3]) for i, form in enumerate(FORMATS)]
)
def test_device_product_with_the_transpose(b, rng, group_size, bits, batch):
    """a (..., I) @ Wᵀ is (..., O), for a number of rows that no kernel likes: 37."""
    (words, scales, biases), w = parts_of(b, rng, 37, 3, group_size, bits)
    a = rng.normal(size=(*batch, w.shape[1]))
    actual = b.quantized_matmul_device(scales, biases, group_size, bits, b.array(a), words, True)
    assert actual.dtype == b.dtype("float32"), "the product must have the type of a"
    idea = f"with transpose_b, the product is a @ Wᵀ, where W is q · scale + bias in groups of {group_size}"
    assert_near(b.numpy(actual), a @ w.T, idea)


@pytest.mark.task("2.3.1")
@pytest.mark.parametrize(("group_size", "bits", "batch"), [(32, 4, ()), (128, 8, (3,)), (32, 4, (2, 3))])
def test_device_product_without_the_transpose(b, rng, group_size, bits, batch):
    """a (..., O) @ W is (..., I), which is the default."""
    (words, scales, biases), w = parts_of(b, rng, 96, 1 if group_size == 128 else 3, group_size, bits)
    a = rng.normal(size=(*batch, 96))
    actual = b.quantized_matmul_device(scales, biases, group_size, bits, b.array(a), words)
    idea = "without transpose_b, the product is a @ W" + OR_EARLIER
    assert_near(b.numpy(actual), a @ w, idea)


@pytest.mark.task("2.3.1")
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_device_product_keeps_the_type_of_a(b, rng, dtype, bits):
    """A bf16 or float16 `a` and scales in float32: the product has a's type."""
    (words, scales, biases), w = parts_of(b, rng, 32, 2, 32, bits)
    a = rng.normal(size=(2, 64))
    actual = b.quantized_matmul_device(scales, biases, 32, bits, b.array(a, dtype), words, True)
    assert actual.dtype == b.dtype(dtype), f"the product must have the type of a, {dtype}"
    expected, size = rounded(b, a, dtype) @ w.T, np.abs(a @ w.T).max()
    assert_close(b.numpy(actual), expected, atol=0.05 * size, rtol=0, idea="far off" + OR_EARLIER)


@pytest.mark.task("2.3.1")
def test_device_product_computes_its_constants_in_float32(b):
    """A scale of 1 + 1/256 and a bias of -7 of them, two numbers that bf16 rounds apart: 0 stays 0."""
    numbers, scale = np.tile(np.arange(16), (16, 2)), 1 + 2**-8
    parts = b.array(np.full((16, 1), scale)), b.array(np.full((16, 1), -7 * scale))
    actual = b.numpy(
        b.quantized_matmul_device(*parts, 32, 4, b.array(np.eye(32)), b.array(as_words(numbers, 4)), True)
    )
    idea = "bias + 8 · scale nearly cancels: compute it in float32, and round the result" + OR_EARLIER
    assert_close(actual, (numbers - 7).T * scale, atol=4e-3, rtol=2**-7, idea=idea)


@pytest.mark.task("2.3.2")
@pytest.mark.parametrize(
    ("group_size", "bits", "dtype", "size"),
    [(32, 4, "float32", 4), (64, 8, "bfloat16", 2), (128, 4, "bfloat16", 2), (128, 8, "float32", 4)],
)
def test_nbytes_is_what_the_formula_says(b, rng, group_size, bits, dtype, size):
    """O · I · bits / 8 for the numbers, and two of `dtype` for each group."""
    parts, w = parts_of(b, rng, 48, 3, group_size, bits, dtype)
    weights = b.QuantizedWeights(*parts, group_size, bits)
    assert tuple(weights.shape) == w.shape
    predicted = w.size * bits // 8 + 2 * size * w.size // group_size
    idea = f"{w.size} numbers of {bits} bits, and a scale and a bias of {size} bytes for each {group_size} of them"
    assert_close(weights.nbytes, predicted, atol=0, rtol=0, idea=idea)


@pytest.mark.task("2.3.2")
def test_nbytes_counts_what_the_device_reads(b, rng):
    """The prepared form takes the place of words, scales and biases: no more bytes than they, and 4 bits a number."""
    parts, w = parts_of(b, rng, 48, 3, 64, 4, "bfloat16")
    weights = b.prepare_weights(b.QuantizedWeights(*parts, 64, 4))
    assert tuple(weights.shape) == w.shape
    least, most = w.size // 2, w.size // 2 + 4 * w.size // 64
    assert least < weights.nbytes <= most, (
        f"{weights.nbytes} bytes: whatever form they have, the numbers take 4 bits each, {least} bytes, and the groups "
        f"at most two bf16 each, {most} in all"
    )


class Stub:
    """A prepared form that answers with its own number, so that it can be seen who multiplied."""

    nbytes = 1000

    def __init__(self, shape):
        self.shape = shape

    def __call__(self, x):
        return x[..., : self.shape[0]] * 0 + 77


@pytest.mark.task("2.3.2")
def test_nbytes_counts_words_and_prepared_form_when_both_are_there(b, rng):
    """Who keeps the words beside the prepared form pays for both."""
    parts, w = parts_of(b, rng, 48, 3, 64, 4, "bfloat16")
    idea = "words, scales, biases and the prepared form: whatever is held counts"
    both = b.QuantizedWeights(*parts, 64, 4, Stub(w.shape))
    assert_close(both.nbytes, w.size // 2 + 4 * w.size // 64 + 1000, atol=0, rtol=0, idea=idea)
    alone = b.QuantizedWeights(None, None, None, 64, 4, Stub(w.shape))
    assert_close(alone.nbytes, 1000, atol=0, rtol=0, idea=idea)


@pytest.mark.task("2.3.3")
@pytest.mark.parametrize(
    ("form", "batch", "bits"),
    [
        (None, (), 4),
        (None, (300,), 8),
        ("kernel", (3,), 8),
        ("kernel", (300,), 4),
        ("words", (2, 3), 4),
        ("words", (300,), 8),
        ("both", (), 8),
        ("both", (300,), 4),
    ],
)
def test_quantized_linear_equals_numpy(b, rng, bits, batch, form):
    """x @ W.T + bias, for few rows and many, from words, from the prepared form, and from both."""
    parts, w = parts_of(b, rng, 40, 2, 64, bits)
    weights = b.QuantizedWeights(*parts, 64, bits)
    if form is not None:
        weights = b.prepare_weights(weights, form)
    x, bias = rng.normal(size=(*batch, 128)), rng.normal(size=40)
    for given in (None, bias):
        actual = b.quantized_linear(b.array(x), weights, given if given is None else b.array(bias))
        assert actual.dtype == b.dtype("float32"), "the output must have the type of x"
        expected = x @ w.T + (0 if given is None else bias)
        idea = "x @ W.T" + ("" if given is None else " + bias, one number an output")
        assert_near(b.numpy(actual), expected, idea)


@pytest.mark.task("2.3.3")
def test_quantized_linear_transposes_a_square_matrix(b, rng):
    """Where O = I, x @ W has the shape of x @ W.T."""
    parts, w = parts_of(b, rng, 64, 2, 32, 8)
    x = rng.normal(size=(2, 64))
    actual = b.numpy(b.quantized_linear(b.array(x), b.QuantizedWeights(*parts, 32, 8)))
    assert_near(actual, x @ w.T, "W has one row per output: multiply by its transpose" + OR_EARLIER)


@pytest.mark.task("2.3.3")
def test_quantized_linear_uses_the_prepared_form(b, rng):
    """What was prepared at load multiplies: nothing is prepared anew at each call."""
    parts, w = parts_of(b, rng, 64, 2, 32, 4)
    x = b.array(rng.normal(size=(2, 64)))
    for weights in (
        b.QuantizedWeights(None, None, None, 32, 4, Stub(w.shape)),
        b.QuantizedWeights(*parts, 32, 4, Stub(w.shape)),
    ):
        actual = b.numpy(b.quantized_linear(x, weights))
        idea = "the prepared form is there: call it, not the function that prepares at each call"
        assert_close(actual, np.full((2, 64), 77.0), idea=idea)


@pytest.mark.task("2.3.3")
def test_quantized_linear_takes_tiles_for_many_rows(b, rng):
    """Where the words are there and `in_tiles` says so, which it does on a CPU, the prepared form is left alone."""
    parts, w = parts_of(b, rng, 64, 2, 32, 4)
    x, weights = rng.normal(size=(300, 64)), b.QuantizedWeights(*parts, 32, 4, Stub(w.shape))
    actual = b.numpy(b.quantized_linear(b.array(x), weights))
    expected = x @ w.T if b.device == "cpu" else np.full((300, 64), 77.0)
    assert_near(actual, expected, "300 rows on a CPU: `in_tiles` says that Day 2's tiles are faster")


@pytest.mark.task("2.3.3")
@pytest.mark.parametrize(("group_size", "bits"), FORMATS)
def test_quantized_linear_keeps_its_promise(b, rng, group_size, bits):
    """An output is off by at most Σ |x| times the scale of its group: no number is further than one scale away."""
    w, x = rng.normal(size=(24, 256)), rng.normal(size=(5, 256))
    weights = b.quantize_matrix(b.array(w), group_size, bits)
    actual = b.numpy(b.quantized_linear(b.array(x), b.prepare_weights(weights)))
    scales = np.abs(b.numpy(weights.scales)).astype(np.float64)
    bound = np.abs(x).reshape(5, -1, group_size).sum(-1) @ scales.T
    kernel = BF16 * np.abs(x @ w.T).max()
    off = np.abs(actual - x @ w.T) - kernel
    assert (off <= bound).all(), (
        f"an output is {off.max():.3g} from x @ w.T, and {bound[off > bound].min():.3g} is the most that {bits} bits "
        "can cost: the numbers do not belong to these weights"
    )


# Sizes that fit every group; no real checkpoint resembles it.
SMALL = small_model(
    14,
    rows=2,
    tokens=5,
    hidden_size=64,
    num_key_value_heads=1,
    head_dim=32,
    intermediate_size=160,
    vocab_size=72,
    max_position_embeddings=32,
    rms_norm_eps=1e-5,
    tie_word_embeddings=False,
)


@pytest.mark.task("2.3.3")
@pytest.mark.parametrize("bits", [4, 8])
def test_model_takes_quantized_weights(b, rng, bits):
    """Every matrix quantised, embedding and head too: the logits are those of the matrices that the words stand for."""
    plain, dense, quantized_ones = {}, {}, {}
    for name, w in random_weights(SMALL).items():
        dense[name] = quantized_ones[name] = plain[name] = b.array(w)
        if w.ndim == 2:
            weights = b.quantize_matrix(plain[name], 32, bits)
            parts = weights.weight, weights.scales, weights.biases
            dense[name] = b.dequantize_weights(*parts, 32, bits)
            quantized_ones[name] = b.prepare_weights(weights, "words" if "embed" in name else "kernel")
    ids = b.array(rng.integers(0, 72, size=(2, 5)))

    def logits(weights):
        model = b.Qwen3ModelWeek2(Checkpoint(SMALL.config, weights))
        return b.numpy(model(ids, 0, model.create_kv_cache()))

    actual, same, exact = logits(quantized_ones), logits(dense), logits(plain)
    size = np.abs(same).max()
    idea = "a model of quantised weights computes what a model of the dequantised ones does"
    assert_close(actual, same, atol=0.05 * size, rtol=0, idea=idea)
    share = np.abs(same - exact).mean() / np.abs(exact).mean()
    assert share < {4: 0.3, 8: 0.02}[bits], f"{bits} bits moved the logits by {share:.1%}" + OR_EARLIER
