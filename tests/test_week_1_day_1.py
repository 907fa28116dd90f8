"""Week 1 Day 1: attention. Oracle: NumPy in float64."""

import numpy as np
import pytest

from support.close import assert_close

BATCHES = [(), (3,), (2, 3), (2, 1, 3)]


def softmax64(x: np.ndarray, axis: int = -1) -> np.ndarray:
    exps = np.exp(x - x.max(axis=axis, keepdims=True))
    return exps / exps.sum(axis=axis, keepdims=True)


def attention64(query, key, value, scale=None, mask=0.0):
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    return softmax64(query @ key.swapaxes(-2, -1) * scale + mask) @ value


@pytest.mark.task("1.1.1")
@pytest.mark.parametrize("axis", [0, 1, 2, -1, -2])
def test_softmax_normalises_along_the_axis(b, rng, axis):
    """softmax(x, axis) is exp(x) / Σ exp(x), the sum along that axis alone."""
    x = rng.normal(size=(3, 4, 5))
    actual = b.numpy(b.softmax(b.array(x), axis))
    assert_close(actual, softmax64(x, axis), idea=f"softmax must sum to 1 along axis {axis}, and only there")


@pytest.mark.task("1.1.1")
def test_softmax_is_stable_at_huge_scores(b):
    """Scores of ±1e4 neither overflow nor vanish, one axis position after another."""
    x = np.array([[1e4, 1e4 - 1.0], [-1e4, -1e4 + 2.0], [1e4, -1e4]])
    actual = b.numpy(b.softmax(b.array(x), -1))
    assert_close(
        actual, softmax64(x), idea="exp overflows or vanishes: subtract each row's own maximum first"
    )


@pytest.mark.task("1.1.1")
def test_softmax_gives_hidden_scores_no_weight(b):
    """A score of -inf gets weight exactly 0, and the others share the 1."""
    actual = b.numpy(b.softmax(b.array([[0.0, -np.inf, 0.0]]), -1))
    assert_close(actual, [[0.5, 0.0, 0.5]], idea="a score of -inf must get weight 0")


@pytest.mark.task("1.1.1")
def test_softmax_keeps_the_type(b, rng):
    """bf16 in, bf16 out: an accelerator would otherwise pay for a silent float32 copy."""
    x = b.array(rng.normal(size=(2, 3)), "bfloat16")
    assert b.softmax(x, -1).dtype == x.dtype, "softmax must return the type that it was given"


@pytest.mark.task("1.1.2")
@pytest.mark.parametrize("batch", BATCHES)
def test_linear_equals_numpy(b, rng, batch):
    """linear(x, w) is x @ w.T for any number of leading axes; w has one row per output."""
    x, w = rng.normal(size=(*batch, 7)), rng.normal(size=(5, 7))
    actual = b.numpy(b.linear(b.array(x), b.array(w)))
    assert_close(actual, x @ w.T, idea="linear is x @ w.T: row o of w makes output o")


@pytest.mark.task("1.1.2")
def test_linear_does_not_transpose_a_square_weight_twice(b, rng):
    """With a square w the shapes cannot tell w from w.T; the numbers can."""
    x, w = rng.normal(size=(2, 6)), rng.normal(size=(6, 6))
    actual = b.numpy(b.linear(b.array(x), b.array(w)))
    assert_close(actual, x @ w.T, idea="the weight is transposed: checkpoints store one row per output")


@pytest.mark.task("1.1.2")
def test_linear_adds_the_bias(b, rng):
    """The bias is added once to every row."""
    x, w, bias = rng.normal(size=(2, 3, 7)), rng.normal(size=(5, 7)), rng.normal(size=5)
    actual = b.numpy(b.linear(b.array(x), b.array(w), b.array(bias)))
    assert_close(actual, x @ w.T + bias, idea="the bias is missing or added wrongly")


@pytest.mark.task("1.1.3")
@pytest.mark.parametrize("batch", BATCHES)
def test_attention_equals_numpy(b, rng, batch):
    """softmax(q kᵀ / √D) v, for 0 to 3 batch axes, with more keys than queries."""
    query = rng.normal(size=(*batch, 4, 8))
    key, value = rng.normal(size=(2, *batch, 6, 8))
    actual = b.numpy(b.scaled_dot_product_attention_simple(b.array(query), b.array(key), b.array(value)))
    idea = "attention is softmax over the keys of q·k/√D, then the weighted mean of the values"
    assert_close(actual, attention64(query, key, value), idea=idea)


@pytest.mark.task("1.1.3")
@pytest.mark.parametrize("scale", [0.25, 0.0])
def test_attention_uses_the_given_scale(b, rng, scale):
    """A given scale replaces 1/√D and does not multiply it; 0.0, which gives all keys the same weight, is one too."""
    query, key, value = rng.normal(size=(3, 4, 8))
    actual = b.scaled_dot_product_attention_simple(b.array(query), b.array(key), b.array(value), scale=scale)
    idea = f"the given scale, {scale}, must replace 1/√D; only None asks for the default"
    assert_close(b.numpy(actual), attention64(query, key, value, scale), idea=idea)


@pytest.mark.task("1.1.3")
def test_attention_adds_the_mask_after_the_scale(b, rng):
    """The mask is added to the scaled scores, before the softmax; it broadcasts over the batch."""
    query, key, value = rng.normal(size=(3, 2, 4, 8))
    mask = rng.normal(size=(4, 4))
    actual = b.scaled_dot_product_attention_simple(
        b.array(query), b.array(key), b.array(value), scale=0.1, mask=b.array(mask)
    )
    idea = "the mask is added to the scores after scaling and before the softmax"
    assert_close(b.numpy(actual), attention64(query, key, value, 0.1, mask), idea=idea)


@pytest.mark.task("1.1.3")
def test_attention_never_reads_a_hidden_value(b, rng):
    """Behind a mask of -inf a value can be anything: the result does not move."""
    query, key, value = rng.normal(size=(3, 4, 8))
    mask = np.zeros((4, 4))
    mask[:, 2] = -np.inf

    def run(values):
        args = (b.array(query), b.array(key), b.array(values))
        return b.numpy(b.scaled_dot_product_attention_simple(*args, mask=b.array(mask)))

    other = value.copy()
    other[2] = 1e6
    assert_close(run(value), run(other), idea="a key whose mask is -inf must get weight 0")


@pytest.mark.task("1.1.4")
@pytest.mark.parametrize("num_heads", [1, 2, 3])
def test_multi_head_attention_equals_numpy(b, rng, num_heads):
    """Head h uses rows h·D … (h+1)·D of wq, wk and wv; wo mixes the joined heads; scale 1/√D of the head."""
    B, L, E = 2, 5, 12
    query, key, value = rng.normal(size=(3, B, L, E))
    wq, wk, wv, wo = rng.normal(size=(4, E, E))
    mask = np.where(rng.random((L, L)) < 0.3, -1e9, 0.0)

    def split(x, w):
        return (x @ w.T).reshape(B, L, num_heads, -1).swapaxes(1, 2)

    heads = attention64(split(query, wq), split(key, wk), split(value, wv), mask=mask)
    expected = heads.swapaxes(1, 2).reshape(B, L, E) @ wo.T
    layer = b.SimpleMultiHeadAttention(E, num_heads, *map(b.array, (wq, wk, wv, wo)))
    actual = layer(b.array(query), b.array(key), b.array(value), mask=b.array(mask))
    idea = (
        "split (B, L, H·D) into (B, L, H, D) first, then bring the heads forward; join them the same way back"
    )
    assert_close(b.numpy(actual), expected, atol=1e-4, rtol=1e-4, idea=idea)


@pytest.mark.task("1.1.4")
def test_multi_head_attention_keeps_query_key_and_value_apart(b, rng):
    """Keys come from `key` and values from `value`: swapping them changes the result."""
    query, key, value = rng.normal(size=(3, 1, 3, 4))
    wq, wk, wv, wo = rng.normal(size=(4, 4, 4))
    layer = b.SimpleMultiHeadAttention(4, 1, *map(b.array, (wq, wk, wv, wo)))
    actual = layer(*map(b.array, (query, key, value)))
    expected = attention64(query @ wq.T, key @ wk.T, value @ wv.T) @ wo.T
    assert_close(b.numpy(actual), expected, atol=1e-4, idea="each input goes through its own projection")
