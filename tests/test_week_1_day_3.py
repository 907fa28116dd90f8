"""Week 1 Day 3: the causal mask, grouped attention, Qwen3's attention layer. Oracle: NumPy in float64."""

import re

import numpy as np
import pytest

from support.close import OR_EARLIER, assert_close
from support.masks import (
    FAR_STARTS,
    MANY,
    SHORT_TYPES,
    assert_no_loop,
    assert_shows,
    assert_traces,
)
from support.qwen3_layer import attention64, causal64, layer64, recognise


def grouped(b, query, key, value, mask=None, **options) -> np.ndarray:
    mask = b.array(mask) if isinstance(mask, np.ndarray) else mask
    arrays = (b.array(array) for array in (query, key, value))
    return b.numpy(b.scaled_dot_product_attention_grouped(*arrays, mask=mask, **options))


def assert_mask(actual: np.ndarray, L: int, S: int) -> None:
    """First the two values that a mask may hold, then their places."""
    assert not np.isnan(actual).any(), "the mask holds NaN: 0 · -inf is no number; choose between 0 and -inf"
    others = actual[(actual != 0) & (actual != -np.inf)]
    assert not others.size, f"the mask holds {others[0]:g}: visible is 0, only -inf hides from every score"
    idea = "query i is at position S - L + i and sees the keys up to there, its own included"
    assert_close(actual, causal64(L, S), idea=idea)


def assert_refuses(call, idea: str, *numbers: int) -> None:
    """`call` must raise a ValueError whose message names the numbers."""
    try:
        call()
    except ValueError as error:
        missing = {str(number) for number in numbers} - set(re.findall(r"-?\d+", str(error)))
        assert not missing, f"the message must name {' and '.join(sorted(missing))}: {error}"
    else:
        pytest.fail(idea)


@pytest.mark.task("1.3.1")
@pytest.mark.parametrize(("L", "S"), [(1, 1), (6, 6), (3, 8), (1, 5), (7, 8), (2, 9)])
def test_causal_mask_ends_at_the_last_key(b, L, S):
    """The last query sees all S keys, each query before it one key less; visible is 0, hidden is -inf."""
    assert_mask(b.numpy(b.causal_mask(L, S, b.dtype("float32"))), L, S)


@pytest.mark.task("1.3.1")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_causal_mask_has_the_wanted_type(b, dtype):
    """The mask comes in `dtype`, and -inf stays -inf in each of them."""
    mask = b.causal_mask(2, 3, b.dtype(dtype))
    assert mask.dtype == b.dtype(dtype), f"the mask must be {dtype}"
    assert_mask(b.numpy(mask), 2, 3)


@pytest.mark.task("1.3.1")
@pytest.mark.parametrize("dtype", SHORT_TYPES)
@pytest.mark.parametrize("start", FAR_STARTS)
def test_causal_mask_is_exact_far_into_a_text(b, start, dtype):
    """13 queries behind 250 keys and more, in bf16 and float16, which have no 257 and no 2,049."""
    mask = b.numpy(b.causal_mask(MANY, start + MANY, b.dtype(dtype)))
    idea = f"{MANY} queries, {start + MANY} keys, {dtype}: each sees the keys up to its own position"
    assert_shows(mask, np.arange(start, start + MANY), idea)


@pytest.mark.task("1.3.1")
def test_causal_mask_is_no_loop(b):
    """A mask of any size is a comparison of two arrays: no Python for each query or key."""
    assert_no_loop(lambda n: b.causal_mask(n, n + 3, b.dtype("float32")), "a loop over queries or keys")


@pytest.mark.task("1.3.1")
@pytest.mark.parametrize(("L", "S"), [(4, 3), (2, 1), (0, 3), (0, 0), (-1, 2)])
def test_causal_mask_refuses_what_has_no_meaning(b, L, S):
    """More queries than keys would leave queries that see nothing; no queries have no mask: name L and S."""
    why = f"{L} queries need at least {L} keys, not {S}" if L > S else "there is at least one query"
    idea = f"causal_mask({L}, {S}) must raise ValueError: {why}"
    assert_refuses(lambda: b.causal_mask(L, S, b.dtype("float32")), idea, L, S)


@pytest.mark.task("1.3.2")
@pytest.mark.parametrize(("batch", "H", "Hkv"), [((), 4, 4), ((2,), 6, 2), ((2, 3), 3, 1), ((2,), 8, 2)])
def test_grouped_attention_equals_numpy(b, rng, batch, H, Hkv):
    """Query head h reads K/V head h // (H/Hkv), for any leading axes, with more keys than queries."""
    query = rng.normal(size=(*batch, H, 3, 8))
    key, value = rng.normal(size=(2, *batch, Hkv, 5, 8))
    idea = f"{H} query heads share {Hkv} K/V heads in groups of {H // Hkv} neighbours, with the scale 1/√D"
    assert_close(grouped(b, query, key, value), attention64(query, key, value), idea=idea)


@pytest.mark.task("1.3.2")
def test_grouped_attention_gives_neighbours_the_same_head(b, rng):
    """When K/V head j holds the value j everywhere, the 6 query heads over 2 read 0 0 0 1 1 1."""
    query, key = rng.normal(size=(6, 2, 4)), rng.normal(size=(2, 3, 4))
    value = np.broadcast_to(np.arange(2.0)[:, None, None], (2, 3, 4))
    heads = grouped(b, query, key, value)[:, 0, 0]
    idea = "query head h reads K/V head h // 3 (0 0 0 1 1 1), not h % 2 (0 1 0 1 0 1)"
    assert_close(heads, [0, 0, 0, 1, 1, 1], idea=idea)


@pytest.mark.task("1.3.2")
@pytest.mark.parametrize("scale", [1.0, 0.3, 0.0])
def test_grouped_attention_uses_the_given_scale(b, rng, scale):
    """A given scale replaces 1/√D, also 0.0, which gives all keys the same weight."""
    query, key, value = rng.normal(size=(4, 3, 8)), *rng.normal(size=(2, 2, 3, 8))
    actual = grouped(b, query, key, value, scale=scale)
    idea = f"the given scale, {scale}, must replace 1/√D; only None asks for the default" + OR_EARLIER
    assert_close(actual, attention64(query, key, value, scale), idea=idea)


@pytest.mark.task("1.3.2")
@pytest.mark.parametrize("shape", [(3, 5), (6, 3, 5), (2, 1, 3, 5), (1, 6, 1, 5), (2, 6, 3, 5)])
def test_grouped_attention_adds_any_mask_that_broadcasts(b, rng, shape):
    """A mask broadcasts to (B, H, L, S): one for all, one a row of the batch, one a query head."""
    query = rng.normal(size=(2, 6, 3, 8))
    key, value = rng.normal(size=(2, 2, 2, 5, 8))
    mask = rng.normal(size=shape)
    mask[..., 0, 1] = -np.inf
    idea = (
        f"a mask of shape {shape} broadcasts to (B, H, L, S), is added after the scale, and per query head: "
        "add it to scores of that shape, or broadcast it before you split H into groups"
    )
    actual = grouped(b, query, key, value, mask, scale=0.2)
    assert_close(actual, attention64(query, key, value, 0.2, mask), idea=idea)


@pytest.mark.task("1.3.2")
def test_grouped_attention_makes_its_mask_where_the_scores_are(b, rng):
    """mask="causal" works on any device, and needs no number of an array: a compiler can trace the whole."""
    query, key, value = rng.normal(size=(4, 3, 8)), *rng.normal(size=(2, 2, 5, 8))
    idea = "the causal mask belongs on the device of the scores, and nothing is read back"
    made = assert_traces(
        b,
        lambda *arrays: b.scaled_dot_product_attention_grouped(*arrays, mask="causal"),
        *map(b.array, (query, key, value)),
        idea=idea,
    )
    assert tuple(made.shape) == (4, 3, 8), f"3 queries of 4 heads, not {tuple(made.shape)}"


@pytest.mark.task("1.3.2")
@pytest.mark.parametrize(("L", "S"), [(5, 5), (3, 8), (1, 4)])
def test_grouped_attention_knows_the_causal_mask_by_name(b, rng, L, S):
    """mask="causal" is causal_mask(L, S): the last query sees all keys, also when L < S."""
    query = rng.normal(size=(2, 4, L, 8))
    key, value = rng.normal(size=(2, 2, 2, S, 8))
    idea = f'mask="causal" with {L} queries and {S} keys: the last query sees all {S}'
    actual = grouped(b, query, key, value, "causal")
    assert_close(actual, attention64(query, key, value, mask=causal64(L, S)), idea=idea)


@pytest.mark.task("1.3.2")
def test_grouped_attention_refuses_causal_with_more_queries_than_keys(b, rng):
    """mask="causal" with L > S raises ValueError, as `causal_mask(L, S)` does."""
    query, key = rng.normal(size=(2, 4, 8)), rng.normal(size=(1, 3, 8))
    idea = 'mask="causal" must raise ValueError: 4 queries need at least 4 keys, not 3'
    assert_refuses(lambda: grouped(b, query, key, key, "causal"), idea)


def assert_bf16_attention(b, query, key, mask, idea: str) -> None:
    """Two query heads over one K/V head whose two values are 0 and 1: the result is the second key's weight."""
    value = np.stack([np.zeros_like(key[:, 0]), np.ones_like(key[:, 0])], axis=1)
    arrays = (b.array(array, "bfloat16") for array in (query, key, value))
    actual = b.scaled_dot_product_attention_grouped(*arrays, mask=b.array(mask, "bfloat16"))
    assert actual.dtype == b.dtype("bfloat16"), "attention must return the type that it was given"
    expected = attention64(query, key, value, mask=mask)
    assert_close(b.numpy(actual), expected, atol=0.01, idea=idea + OR_EARLIER)


@pytest.mark.task("1.3.2")
def test_grouped_attention_in_bf16_adds_the_mask_in_float32(b):
    """100 - 0.25 is 100 in bf16: the sum of scores and mask, and the softmax, need float32."""
    query, key, mask = np.full((2, 1, 4), 10.0), np.full((1, 2, 4), 5.0), np.array([[0.0, -0.25]])
    idea = "the softmax of bf16 scores must be computed in float32: a mask of -0.25 vanished beside 100"
    assert_bf16_attention(b, query, key, mask, idea)


@pytest.mark.task("1.3.2")
def test_grouped_attention_in_bf16_scales_in_float32(b):
    """The products 254 and 255 are exact in bf16; divided by √3 they are 146.6 and 147.2, both 147 in bf16."""
    query, key, mask = np.ones((2, 1, 3)), np.array([[[84.0, 85, 85], [85, 85, 85]]]), np.zeros((1, 2))
    idea = "the scaled scores were bf16: convert the product to float32 first, then scale it (not the query)"
    assert_bf16_attention(b, query, key, mask, idea)


@pytest.mark.task("1.3.2")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_grouped_attention_does_not_copy_heads(b, dtype):
    """One query token over 512 keys, 16 heads over 2: the step needs less memory than a float32 copy of K.

    Repeating K for its 8 query heads takes more; so does broadcasting in torch, whose matmul copies what it broadcasts.
    A bf16 product of several threads may take half of it: some processors want K in another layout.
    """
    query = b.array(np.ones((1, 16, 1, 128)), dtype)
    key, value = (b.array(np.ones((1, 2, 512, 128)), dtype) for _ in range(2))
    # The lower of two: the first product of a kind may build a kernel, which is memory as well.
    peak = min(
        b.peak_bytes(lambda: b.scaled_dot_product_attention_grouped(query, key, value)) for _ in range(2)
    )
    float32_key = 2 * 512 * 128 * 4
    assert peak < float32_key, (
        f"attention held {peak:,} bytes beside its inputs, and K in float32 has {float32_key:,}: K or V was copied. "
        "Give each K/V head the queries of its group as more rows, and convert the scores, not K "
        "(a float32 array times a bf16 K converts K as well)"
    )


def layer_weights(rng, E, H, Hkv, D) -> list[np.ndarray]:
    """wq, wk, wv, wo, q_norm, k_norm; each row of a projection has about unit length."""
    shapes = [(H * D, E), (Hkv * D, E), (Hkv * D, E), (E, H * D)]
    projections = [rng.normal(size=shape) * shape[1] ** -0.5 for shape in shapes]
    return [*projections, *rng.uniform(0.3, 2.0, size=(2, D))]


@pytest.mark.task("1.3.3")
@pytest.mark.parametrize(
    ("E", "H", "Hkv", "D", "mask"),
    [(20, 6, 2, 8, None), (20, 6, 2, 8, "causal"), (12, 3, 1, 6, "array"), (18, 4, 4, 4, "causal")],
)
def test_attention_layer_equals_numpy(b, rng, E, H, Hkv, D, mask):
    """Norms before RoPE, halves as pairs, groups, and the head size that the weights say, not E/H."""
    x, weights = rng.normal(size=(2, 7, E)), layer_weights(rng, E, H, Hkv, D)
    layer = b.Qwen3MultiHeadAttention(E, H, Hkv, D, *map(b.array, weights))
    numbers = {None: np.zeros((7, 7)), "causal": causal64(7, 7), "array": rng.normal(size=(2, H, 7, 7))}[mask]
    actual = b.numpy(layer(b.array(x), b.array(numbers) if mask == "array" else mask))
    idea = (
        "project, norm each q and k head, RoPE, grouped attention with 1/√head_dim, join the heads, project"
    )
    idea = recognise(actual, x, weights, D, idea, mask=numbers)
    assert_close(actual, layer64(x, weights, D, numbers), atol=1e-4, idea=idea)


@pytest.mark.task("1.3.3")
def test_attention_layer_uses_theta_and_eps(b, rng):
    """RoPE's base and the norm's eps are the layer's own: here far from the defaults."""
    x, weights = rng.normal(size=(1, 9, 10)), layer_weights(rng, 10, 4, 2, 6)
    layer = b.Qwen3MultiHeadAttention(10, 4, 2, 6, *map(b.array, weights), 32, 50, 0.5)
    actual, options = b.numpy(layer(b.array(x), "causal")), {"mask": causal64(9, 9), "theta": 50, "eps": 0.5}
    idea = "theta is RoPE's base and rms_norm_eps is added to the mean square of a head" + OR_EARLIER
    idea = recognise(actual, x, weights, 6, idea, **options)
    assert_close(actual, layer64(x, weights, 6, **options), atol=1e-4, idea=idea)


@pytest.mark.task("1.3.3")
def test_attention_layer_does_not_see_the_length_of_a_query(b, rng):
    """q_norm and k_norm take the length away: wq and wk ten times as large change nothing, wv does."""
    x, weights = rng.normal(size=(1, 5, 12)), layer_weights(rng, 12, 4, 2, 6)

    def run(factors):
        scaled = [b.array(w * f) for w, f in zip(weights, factors, strict=True)]
        return b.numpy(b.Qwen3MultiHeadAttention(12, 4, 2, 6, *scaled)(b.array(x), "causal"))

    once = run([1, 1, 1, 1, 1, 1])
    idea = "every head of q and k is divided by its own root mean square, with eps 1e-5" + OR_EARLIER
    idea = recognise(once, x, weights, 6, idea, mask=causal64(5, 5))
    assert_close(run([10, 10, 1, 1, 1, 1]), once, atol=1e-3, idea=idea)
    assert_close(
        run([1, 1, 10, 1, 1, 1]), 10 * once, atol=1e-3, idea="the values are not normalised" + OR_EARLIER
    )


@pytest.mark.task("1.3.3")
def test_attention_layer_norms_each_head_by_itself(b, rng):
    """One query head ten times as large: its neighbours' scores must not shrink, and no head's may grow."""
    x, weights = rng.normal(size=(1, 5, 12)), layer_weights(rng, 12, 4, 2, 6)
    loud = [weights[0] * np.repeat([10, 1, 1, 1], 6)[:, None], *weights[1:]]
    one, other = (
        b.numpy(b.Qwen3MultiHeadAttention(12, 4, 2, 6, *map(b.array, w))(b.array(x))) for w in (weights, loud)
    )
    idea = "the norm runs over the D numbers of one head, not over all heads" + OR_EARLIER
    assert_close(other, one, atol=1e-3, idea=recognise(one, x, weights, 6, idea, mask=0.0))


@pytest.mark.task("1.3.3")
def test_attention_layer_keeps_the_type(b, rng):
    """bf16 weights and inputs give a bf16 output, near the exact one."""
    x, weights = rng.normal(size=(1, 5, 16)), layer_weights(rng, 16, 4, 2, 8)
    layer = b.Qwen3MultiHeadAttention(16, 4, 2, 8, *(b.array(w, "bfloat16") for w in weights))
    actual = layer(b.array(x, "bfloat16"), "causal")
    assert actual.dtype == b.dtype("bfloat16"), "the layer must return the type that it was given"
    idea = "the layer in bf16 is far from the exact one" + OR_EARLIER
    assert_close(b.numpy(actual), layer64(x, weights, 8, causal64(5, 5)), atol=0.05, idea=idea)
