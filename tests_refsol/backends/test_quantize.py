"""Quantised weights as a product: MLX's own quantiser as a second oracle, error lines, dispatchers, what is held."""

import numpy as np
import pytest

from support.close import assert_close
from support.quantized import in_float16

EXACT = {"atol": 0, "rtol": 0}


@pytest.fixture
def matrix(rng) -> np.ndarray:
    """Rows of every kind: noise, zeros, one sign, equal numbers, ends that are equally far, tiny ones, large ones."""
    noise = rng.normal(size=(40, 256)) * rng.uniform(0.001, 30, size=(40, 1))
    odd = [np.zeros(256), np.abs(noise[0]), -np.abs(noise[0]), np.full(256, 0.3), np.full(256, 1e-8)]
    ends = [np.tile([-1, 1], 128), np.tile([-7.0, 15.0], 128), noise[1] * 1e-6, noise[1] * 1e3]
    return np.stack([*noise, *odd, *ends])


@pytest.mark.port("mlx")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize(("group_size", "bits"), [(32, 4), (64, 4), (128, 4), (32, 8), (64, 8), (128, 8)])
def test_every_port_quantises_as_mlx_does(b, matrix, group_size, bits, dtype):
    """Words, scales and biases, bit for bit, of MLX's kernel on a CPU."""
    from tiny_llm_engine.solutions.port import Port

    mlx = Port("ref", "mlx", "cpu")
    import mlx.core as mx

    theirs = mx.quantize(mlx.array(matrix, dtype), group_size=group_size, bits=bits)
    ours = b.quantize_weights(b.array(matrix, dtype), group_size, bits)
    for name, expected, actual in zip(("words", "scales", "biases"), theirs, ours, strict=True):
        assert_close(b.numpy(actual), mlx.numpy(expected), **EXACT, idea=f"MLX has other {name}")


def quantized(b, rng, rows=40, columns=128, group_size=64, bits=4, dtype="float32"):
    return b.quantize_matrix(b.array(rng.normal(size=(rows, columns)), dtype), group_size, bits)


def dense(b, w) -> np.ndarray:
    return b.numpy(b.dequantize_weights(w.weight, w.scales, w.biases, w.group_size, w.bits)).astype(
        np.float64
    )


REFUSED = [
    (128, 64, 3, "bits is 3 and must be 4 or 8"),
    (128, 16, 4, "group_size is 16 and must be 32, 64 or 128"),
    (100, 32, 4, "rows of 100 numbers cannot be cut into groups of 32"),
]


@pytest.mark.parametrize(("columns", "group_size", "bits", "message"), REFUSED)
def test_what_cannot_be_quantized_is_one_line(b, columns, group_size, bits, message):
    with pytest.raises(ValueError) as caught:
        b.quantize_weights(b.array(np.ones((2, columns))), group_size, bits)
    assert str(caught.value) == message


@pytest.mark.parametrize("function", ["quantized_matmul_tiled", "quantized_matmul_device"])
def test_what_cannot_be_multiplied_is_one_line(b, rng, function):
    w, multiply = quantized(b, rng), getattr(b, function)
    a = b.array(np.ones((2, 128)))
    for arguments, message in (
        ((w.scales, w.biases, 64, 4, a, w.weight), r"a has 128 columns, and W \(40, 128\) needs 40"),
        ((w.scales, w.biases, 64, 8, a, w.weight, True), r"\(40, 16\), \(40, 2\), \(40, 2\) do not fit"),
        ((w.scales, w.biases, 32, 4, a, w.weight, True), "do not fit group_size 32, bits 4"),
        ((w.scales, w.biases[:, :1], 64, 4, a, w.weight, True), r"\(40, 1\) do not fit"),
        ((w.scales, w.biases, 64, 5, a, w.weight, True), "bits is 5"),
    ):
        with pytest.raises(ValueError, match=message):
            multiply(*arguments)
    with pytest.raises(ValueError, match=r"x has 40 columns, and W \(40, 128\) needs 128"):
        b.quantized_linear(b.array(np.ones((2, 40))), w)


@pytest.mark.parametrize("path", ["tiled", "device"])
def test_the_dispatcher_takes_either_path(b, rng, path):
    w, a = quantized(b, rng), rng.normal(size=(3, 128))
    actual = b.quantized_matmul(w.scales, w.biases, 64, 4, b.array(a), w.weight, True, path=path)
    assert_close(b.numpy(actual), a @ dense(b, w).T, atol=0.3, idea=path)


def test_the_dispatcher_is_tiled_by_default_and_knows_no_other(b, rng):
    w, a = quantized(b, rng), b.array(np.eye(128))
    arguments = (w.scales, w.biases, 64, 4, a, w.weight, True)
    actual = b.numpy(b.quantized_matmul(*arguments))
    assert_close(actual, dense(b, w).T, atol=1e-5, idea="tiles compute in float32")
    with pytest.raises(ValueError, match="path 'fast' is unknown: choose tiled or device"):
        b.quantized_matmul(*arguments, path="fast")


def test_a_projection_goes_by_the_kind_of_weight(b, rng):
    w, x, bias = quantized(b, rng), rng.normal(size=(3, 128)), rng.normal(size=40)
    expected = x @ dense(b, w).T + bias
    for weight in (w, b.prepare_weights(w), b.array(dense(b, w))):
        actual = b.linear_layer(weight, b.array(bias))(b.array(x))
        assert_close(b.numpy(actual), expected, atol=0.3, idea=type(weight).__name__)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("form", ["words", "both"])
def test_a_quantized_table_hands_out_rows_and_scores(b, rng, bits, form):
    w = quantized(b, rng, bits=bits)
    table, ids, x = dense(b, w), np.array([[0, 39, 7], [7, 7, 1]]), rng.normal(size=(2, 3, 128))
    embedding = b.embedding_of(40, 128, b.prepare_weights(w, form))
    assert_close(b.numpy(embedding(b.array(ids))), table[ids], **EXACT, idea="rows of the table")
    assert_close(b.numpy(embedding.as_linear(b.array(x))), x @ table.T, atol=0.3, idea="scores")


def test_a_table_that_does_not_fit_is_one_line(b, rng):
    w = quantized(b, rng)
    with pytest.raises(ValueError, match=r"the table has shape \(40, 128\), expected \(41, 128\)"):
        b.embedding_of(41, 128, w)
    without_words = b.QuantizedWeights(None, None, None, 64, 4, b.array(np.ones((40, 128))))
    with pytest.raises(
        ValueError, match="this matrix has no words: prepare it in the form 'words' or 'both'"
    ):
        b.embedding_of(40, 128, without_words)(b.array([1]))
    assert type(b.embedding_of(40, 128, b.array(dense(b, w)))) is b.Embedding


def test_forms_hold_what_they_say(b, rng):
    """ "words" costs what it did, "both" costs at most twice that, and 8 bits have one form."""
    for bits in (4, 8):
        w = quantized(b, rng, rows=48, bits=bits, dtype="bfloat16")
        sizes = {form: b.prepare_weights(w, form).nbytes for form in ("kernel", "words", "both")}
        assert sizes["kernel"] == sizes["words"] == w.nbytes
        assert sizes["both"] in (w.nbytes, *([2 * w.nbytes] if bits == 4 else []))
        assert b.prepare_weights(w, "both").weight is not None
    with pytest.raises(ValueError, match="form 'fast' is unknown: choose kernel, words, both"):
        b.prepare_weights(w, "fast")


# Scales in another type than the model.

DTYPES = ["float32", "bfloat16"]


def off(b, actual, expected) -> float:
    """The relative norm of the difference."""
    return np.linalg.norm(b.numpy(actual).astype(float) - expected) / np.linalg.norm(expected)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("form", [None, "words", "both"])
def test_rows_are_rounded_once_to_the_type_of_the_model(b, rng, bits, dtype, form):
    w, table = in_float16(b, rng, 40, 96, bits, dtype)
    embedding = b.embedding_of(40, 96, w if form is None else b.prepare_weights(w, form))
    rows = embedding(b.array(np.arange(40)))
    assert embedding.weight.dtype == rows.dtype == b.dtype(dtype)
    expected = b.numpy(b.array(table, dtype))
    assert_close(b.numpy(rows), expected, **EXACT, idea="rows in float16 would be rounded twice")


@pytest.mark.parametrize("rows", [1, 200])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("form", [None, "kernel", "words", "both"])
def test_a_product_does_not_round_scales_to_its_type(b, rng, rows, bits, dtype, form):
    """Few rows and many, which take tiles. Only torch's kernel for 4 bits does: it knows no other type than bf16."""
    w, matrix = in_float16(b, rng, 40, 96, bits, dtype)
    prepared = w if form is None else b.prepare_weights(w, form)
    x, bias = b.array(rng.normal(size=(rows, 96)), dtype), b.array(rng.normal(size=40), dtype)
    out = b.quantized_linear(x, prepared, bias)
    assert out.dtype == x.dtype and prepared.dtype == b.dtype(dtype)
    expected = b.numpy(x).astype(float) @ matrix.T + b.numpy(bias)
    by_kernel = b.name == "torch" and bits == 4 and (rows == 1 or form == "kernel")
    assert off(b, out, expected) < (0.01 if by_kernel else 0.004 if dtype == "bfloat16" else 1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_prepared_matrix_converts_no_scales_in_a_product(b, rng, dtype):
    w, _ = in_float16(b, rng, 40, 96, 8, dtype)
    prepared = b.prepare_weights(w, "words")
    assert all(a is c for a, c in zip(prepared.wide_constants, prepared.parts[1:], strict=True))
    assert prepared.nbytes == 40 * 96 * (8 + 2) / 8


def test_without_another_type_scales_keep_theirs(b, rng):
    w, _ = in_float16(b, rng, 40, 96, 4)
    prepared = b.prepare_weights(w, "words")
    assert w.dtype == prepared.dtype == prepared.scales.dtype == b.dtype("float16")
    assert b.embedding_of(40, 96, prepared)(b.array([1])).dtype == b.dtype("float16")
