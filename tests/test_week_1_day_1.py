"""Week 1 Day 1: attention. Oracle: NumPy in float64."""

from functools import partial

import numpy as np
import pytest

from support.close import assert_close, recognised

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


@pytest.mark.task("1.1.1")
def test_softmax_leaves_its_input_alone(b, rng):
    """The scores belong to the caller, who may still need them."""
    scores = rng.normal(size=(2, 5))
    x = b.array(scores)
    b.numpy(b.softmax(x, -1))
    idea = "softmax changed the caller's scores: write x = x - …, since x -= … changes x itself"
    assert_close(b.numpy(x), scores, idea=idea)


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


def split64(x, num_heads):
    return x.reshape(*x.shape[:2], num_heads, -1).swapaxes(1, 2)


def join64(heads):
    return heads.swapaxes(1, 2).reshape(len(heads), heads.shape[2], -1)


def reshaped(x, num_heads):
    return x.reshape(len(x), num_heads, x.shape[1], -1)


def joined_as_they_are(heads):
    return heads.reshape(len(heads), heads.shape[2], -1)


def layer64(inputs, weights, num_heads, mask=0.0, scale=None, split=split64, join=join64):
    """Multi-head attention; other values of `split` and `join` are wrong ideas."""
    *projections, wo = weights
    heads = (split(x @ w.T, num_heads) for x, w in zip(inputs, projections, strict=True))
    return join(attention64(*heads, scale, mask)) @ wo.T


def assert_multi_head(b, inputs, weights, num_heads, mask=None) -> None:
    """Compare with `layer64`; the message names the wrong layer that computes the same numbers."""
    __tracebackhide__ = True
    query, key, value = inputs
    wq, wk, wv, wo = weights
    E = len(wo)
    options = {
        "inputs": inputs,
        "weights": weights,
        "num_heads": num_heads,
        "mask": 0.0 if mask is None else mask,
    }
    wrong = {
        "keys and values come from `query`: each of the three inputs has its own projection": {
            "inputs": (query, query, query)
        },
        "the keys come from `query`; they are wk times `key`": {"inputs": (query, query, value)},
        "the values come from `key`; they are wv times `value`": {"inputs": (query, key, key)},
        "the values come from `query`; they are wv times `value`": {"inputs": (query, key, query)},
        "`key` and `value` are exchanged": {"inputs": (query, value, key)},
        "wk and wv are exchanged": {"weights": (wq, wv, wk, wo)},
        "wq and wk are exchanged": {"weights": (wk, wq, wv, wo)},
        "wq projects all three inputs; keys have wk, and values wv": {"weights": (wq, wq, wq, wo)},
        "wo is missing: it mixes the joined heads": {"weights": (wq, wk, wv, np.eye(E))},
        "wq, wk and wv are not transposed: use `linear`, one row per output": {
            "weights": (wq.T, wk.T, wv.T, wo)
        },
        "no weight is transposed: use `linear`, one row per output": {"weights": (wq.T, wk.T, wv.T, wo.T)},
        "the mask is lost on its way to attention": {"mask": 0.0},
        "the scale is 1/√E; it is 1/√D, with the D of one head": {"scale": E**-0.5},
        "all E numbers are one head: num_heads does nothing": {"num_heads": 1},
        "split (B, L, H·D) into (B, L, H, D) first, then bring the heads forward": {"split": reshaped},
        "split (B, L, H·D) into (B, L, H, D) first, then bring the heads forward; the same way back": {
            "split": reshaped,
            "join": joined_as_they_are,
        },
        "bring the heads back behind the tokens before you join them": {"join": joined_as_they_are},
        "rows h·D to (h+1)·D - 1 belong to head h: split into (H, D), not into (D, H)": {
            "split": lambda x, H: x.reshape(*x.shape[:2], -1, H).transpose(0, 3, 1, 2)
        },
    }
    idea = "project, split into heads, attend with 1/√D of a head, join, project with wo"
    layer = b.SimpleMultiHeadAttention(E, num_heads, *map(b.array, weights))
    actual = b.numpy(layer(*map(b.array, inputs), mask=None if mask is None else b.array(mask)))
    idea = recognised(actual, {name: partial(layer64, **(options | wrong[name])) for name in wrong}, idea)
    assert_close(actual, layer64(**options), atol=1e-4, rtol=1e-4, idea=idea)


@pytest.mark.task("1.1.4")
def test_multi_head_attention_keeps_query_key_and_value_apart(b, rng):
    """Keys come from `key` and values from `value`, each through its own projection: here one head, and no mask."""
    assert_multi_head(b, rng.normal(size=(3, 1, 3, 4)), rng.normal(size=(4, 4, 4)), 1)


@pytest.mark.task("1.1.4")
@pytest.mark.parametrize("num_heads", [1, 2, 3])
def test_multi_head_attention_equals_numpy(b, rng, num_heads):
    """Head h uses rows h·D … (h+1)·D of wq, wk and wv; wo mixes the joined heads; scale 1/√D of the head."""
    mask = np.where(rng.random((5, 5)) < 0.3, -1e9, 0.0)
    assert_multi_head(b, rng.normal(size=(3, 2, 5, 12)), rng.normal(size=(4, 12, 12)), num_heads, mask)
