"""Week 1 Day 3: the causal mask, grouped attention, Qwen3's attention layer. Oracle: NumPy in float64."""

import numpy as np
import pytest

from tiny_llm_kit.grading import assert_close

HEADS = [(4, 4), (6, 2), (3, 1), (8, 2)]  # (H, Hkv)


def causal64(L: int, S: int) -> np.ndarray:
    """0 where key j stands at or before query i, which stands at S - L + i; -inf elsewhere."""
    return np.where(np.arange(S) <= np.arange(L)[:, None] + S - L, 0.0, -np.inf)


def attention64(query, key, value, scale=None, mask=0.0) -> np.ndarray:
    """Grouped attention the slow way: every K/V head is repeated for its group."""
    group = query.shape[-3] // key.shape[-3]
    key, value = np.repeat(key, group, axis=-3), np.repeat(value, group, axis=-3)
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = query @ key.swapaxes(-2, -1) * scale + mask
    exps = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return exps / exps.sum(axis=-1, keepdims=True) @ value


def grouped(b, query, key, value, mask=None, **options) -> np.ndarray:
    mask = b.array(mask) if isinstance(mask, np.ndarray) else mask
    arrays = (b.array(array) for array in (query, key, value))
    return b.numpy(b.scaled_dot_product_attention_grouped(*arrays, mask=mask, **options))


@pytest.mark.task("1.3.1")
@pytest.mark.parametrize(("L", "S"), [(1, 1), (6, 6), (3, 8), (1, 5), (7, 8), (2, 9)])
def test_causal_mask_ends_at_the_last_key(b, L, S):
    """The last query sees all S keys, each query before it one key less; visible is 0, hidden is -inf."""
    idea = "query i stands at position S - L + i and sees the keys up to there, its own included"
    actual = b.numpy(b.causal_mask(L, S, b.dtype("float32")))
    assert_close(actual, causal64(L, S), idea=idea)


@pytest.mark.task("1.3.1")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_causal_mask_has_the_wanted_type(b, dtype):
    """The mask comes in `dtype`, and -inf stays -inf in each of them."""
    mask = b.causal_mask(2, 3, b.dtype(dtype))
    assert mask.dtype == b.dtype(dtype), f"the mask must be {dtype}"
    assert_close(b.numpy(mask), causal64(2, 3), idea=f"hidden is -inf, also in {dtype}")


@pytest.mark.task("1.3.1")
@pytest.mark.parametrize(("L", "S"), [(4, 3), (2, 1), (0, 3), (0, 0), (-1, 2)])
def test_causal_mask_refuses_what_has_no_meaning(b, L, S):
    """More queries than keys would leave queries that see nothing; no queries have no mask: name L and S."""
    with pytest.raises(ValueError, match=rf"(?=.*{L})(?=.*{S})"):
        b.causal_mask(L, S, b.dtype("float32"))


@pytest.mark.task("1.3.2")
@pytest.mark.parametrize("batch", [(), (2,), (2, 3)])
@pytest.mark.parametrize(("H", "Hkv"), HEADS)
def test_grouped_attention_equals_numpy(b, rng, batch, H, Hkv):
    """Query head h reads K/V head h // (H/Hkv), for any leading axes, with more keys than queries."""
    query = rng.normal(size=(*batch, H, 3, 8))
    key, value = rng.normal(size=(2, *batch, Hkv, 5, 8))
    idea = f"{H} query heads share {Hkv} K/V heads in groups of {H // Hkv} neighbours"
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
@pytest.mark.parametrize("scale", [1.0, 0.3])
def test_grouped_attention_uses_the_given_scale(b, rng, scale):
    """A given scale replaces 1/√D."""
    query, key, value = rng.normal(size=(4, 3, 8)), *rng.normal(size=(2, 2, 3, 8))
    actual = grouped(b, query, key, value, scale=scale)
    assert_close(actual, attention64(query, key, value, scale), idea="the given scale must replace 1/√D")


@pytest.mark.task("1.3.2")
@pytest.mark.parametrize("shape", [(3, 5), (6, 3, 5), (2, 1, 3, 5), (1, 6, 1, 5), (2, 6, 3, 5)])
def test_grouped_attention_adds_any_mask_that_broadcasts(b, rng, shape):
    """A mask broadcasts to (B, H, L, S): one for all, one a row of the batch, one a query head."""
    query = rng.normal(size=(2, 6, 3, 8))
    key, value = rng.normal(size=(2, 2, 2, 5, 8))
    mask = rng.normal(size=shape)
    mask[..., 0, 1] = -np.inf
    actual = grouped(b, query, key, value, mask, scale=0.2)
    idea = f"a mask of shape {shape} broadcasts to (B, H, L, S), is added after the scale, and per query head"
    assert_close(actual, attention64(query, key, value, 0.2, mask), idea=idea)


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
def test_grouped_attention_in_bf16_normalises_in_float32(b):
    """Scores of 100 and 99.75 are one number in bf16 (100): scale, mask and softmax need float32."""
    query, key = np.full((2, 1, 4), 10.0), np.full((1, 2, 4), 5.0)
    value, mask = np.array([[[0.0], [1.0]]]), np.array([[0.0, -0.25]])
    arrays = (b.array(array, "bfloat16") for array in (query, key, value))
    actual = b.scaled_dot_product_attention_grouped(*arrays, mask=b.array(mask, "bfloat16"))
    assert actual.dtype == b.dtype("bfloat16"), "attention must return the type that it was given"
    idea = "the softmax of bf16 scores must be computed in float32: a mask of -0.25 vanished beside 100"
    assert_close(b.numpy(actual), attention64(query, key, value, mask=mask), atol=0.01, idea=idea)


@pytest.mark.task("1.3.2")
@pytest.mark.parametrize(("dtype", "size"), [("float32", 4), ("bfloat16", 2)])
def test_grouped_attention_does_not_copy_heads(b, dtype, size):
    """One query token over 512 keys, 16 heads over 2: the step needs less memory than one copy of K.

    Repeating K for its 8 query heads takes eight times K; so does broadcasting in torch, whose matmul copies
    what it broadcasts. A float32 copy of a bf16 K takes twice K.
    """
    query = b.array(np.ones((1, 16, 1, 128)), dtype)
    key, value = (b.array(np.ones((1, 2, 512, 128)), dtype) for _ in range(2))
    peak = b.peak_bytes(lambda: b.scaled_dot_product_attention_grouped(query, key, value))
    bytes_of_key = 2 * 512 * 128 * size
    assert peak < bytes_of_key, (
        f"attention held {peak:,} bytes beside its inputs, and K has {bytes_of_key:,}: K or V was copied. "
        "Give each K/V head the queries of its group as more rows, and convert the scores, not K"
    )


def layer_weights(rng, E, H, Hkv, D) -> list[np.ndarray]:
    """wq, wk, wv, wo, q_norm, k_norm; each row of a projection has about unit length."""
    shapes = [(H * D, E), (Hkv * D, E), (Hkv * D, E), (E, H * D)]
    projections = [rng.normal(size=shape) * shape[1] ** -0.5 for shape in shapes]
    return [*projections, *rng.uniform(0.3, 2.0, size=(2, D))]


def layer64(
    x, weights, H, Hkv, D, mask=0.0, theta=1e6, eps=1e-5, scale=None, pairing="halves", rope_first=False
) -> np.ndarray:
    """Qwen3's attention: project, norm q and k head by head, turn the halves, attend, join, project."""
    wq, wk, wv, wo, q_norm, k_norm = weights
    B, L, _ = x.shape
    turns = np.exp(1j * np.arange(L)[:, None] * np.float64(theta) ** (-np.arange(0, D, 2) / D))

    def heads(w):
        return (x @ w.T).reshape(B, L, -1, D).swapaxes(1, 2)

    def turn(h):
        if pairing is None:
            return h
        if pairing == "neighbours":
            turned = (h[..., ::2] + 1j * h[..., 1::2]) * turns
            return np.stack([turned.real, turned.imag], axis=-1).reshape(h.shape)
        turned = (h[..., : D // 2] + 1j * h[..., D // 2 :]) * turns
        return np.concatenate([turned.real, turned.imag], axis=-1)

    def norm(h, weight):
        return h / np.sqrt((h**2).mean(axis=-1, keepdims=True) + eps) * weight

    def norm_and_turn(h, weight):
        return norm(turn(h), weight) if rope_first else turn(norm(h, weight))

    query, key = norm_and_turn(heads(wq), q_norm), norm_and_turn(heads(wk), k_norm)
    return attention64(query, key, heads(wv), scale, mask).swapaxes(1, 2).reshape(B, L, -1) @ wo.T


def recognise(actual, x, weights, *sizes, mask) -> str:
    """The name of the wrong layer that computes `actual`; otherwise what the right one does."""
    *projections, q_norm, k_norm = weights
    wrong_layers = {
        "RoPE comes before the norms of q and k; it belongs behind them": {"rope_first": True},
        "RoPE turns neighbours; Qwen3's pairs are halves (traditional=False)": {"pairing": "neighbours"},
        "the scale is 1/√hidden_size; it is 1/√head_dim": {"scale": x.shape[-1] ** -0.5},
        "the mask is lost on its way": {"mask": 0.0},
        "the mask is always causal": {"mask": causal64(*x.shape[1:2] * 2)},
        "RoPE is missing: queries and keys are not turned": {"pairing": None},
        "k_norm is not used: q_norm serves the keys too": {"weights": [*projections, q_norm, q_norm]},
        "q_norm is not used: k_norm serves the queries too": {"weights": [*projections, k_norm, k_norm]},
    }
    for name, change in wrong_layers.items():
        options = {"weights": weights, "mask": mask} | change
        if np.allclose(actual, layer64(x, options.pop("weights"), *sizes, **options), atol=1e-4):
            return name
    return (
        "project, norm each q and k head, RoPE, grouped attention with 1/√head_dim, join the heads, project"
    )


@pytest.mark.task("1.3.3")
@pytest.mark.parametrize(("E", "H", "Hkv", "D"), [(20, 6, 2, 8), (12, 3, 1, 6), (16, 4, 4, 4)])
@pytest.mark.parametrize("mask", [None, "causal", "array"])
def test_attention_layer_equals_numpy(b, rng, E, H, Hkv, D, mask):
    """Norms before RoPE, halves as pairs, groups, and the head size that the weights say, not E/H."""
    x, weights = rng.normal(size=(2, 7, E)), layer_weights(rng, E, H, Hkv, D)
    layer = b.Qwen3MultiHeadAttention(E, H, Hkv, D, *map(b.array, weights))
    numbers = {None: np.zeros((7, 7)), "causal": causal64(7, 7), "array": rng.normal(size=(2, H, 7, 7))}[mask]
    actual = b.numpy(layer(b.array(x), b.array(numbers) if mask == "array" else mask))
    expected = layer64(x, weights, H, Hkv, D, numbers)
    idea = recognise(actual, x, weights, H, Hkv, D, mask=numbers)
    assert_close(actual, expected, atol=1e-4, idea=idea)


@pytest.mark.task("1.3.3")
def test_attention_layer_uses_theta_and_eps(b, rng):
    """RoPE's base and the norm's eps are the layer's own: here far from the defaults."""
    x, weights = rng.normal(size=(1, 9, 10)), layer_weights(rng, 10, 4, 2, 6)
    layer = b.Qwen3MultiHeadAttention(10, 4, 2, 6, *map(b.array, weights), 32, 50, 0.5)
    expected = layer64(x, weights, 4, 2, 6, causal64(9, 9), theta=50, eps=0.5)
    idea = "theta is RoPE's base and rms_norm_eps is added to the mean square of a head"
    assert_close(b.numpy(layer(b.array(x), "causal")), expected, atol=1e-4, idea=idea)


@pytest.mark.task("1.3.3")
def test_attention_layer_does_not_see_the_length_of_a_query(b, rng):
    """q_norm and k_norm take the length away: wq and wk ten times as large change nothing, wv does."""
    x, weights = rng.normal(size=(1, 5, 12)), layer_weights(rng, 12, 4, 2, 6)

    def run(factors):
        scaled = [b.array(w * f) for w, f in zip(weights, factors, strict=True)]
        return b.numpy(b.Qwen3MultiHeadAttention(12, 4, 2, 6, *scaled)(b.array(x), "causal"))

    once = run([1, 1, 1, 1, 1, 1])
    idea = "every head of q and k is divided by its own root mean square, with eps 1e-5"
    assert_close(run([10, 10, 1, 1, 1, 1]), once, atol=1e-3, idea=idea)
    assert_close(run([1, 1, 10, 1, 1, 1]), 10 * once, atol=1e-3, idea="the values are not normalised")


@pytest.mark.task("1.3.3")
def test_attention_layer_norms_each_head_by_itself(b, rng):
    """One query head ten times as large: its neighbours' scores must not shrink, and no head's may grow."""
    x, weights = rng.normal(size=(1, 5, 12)), layer_weights(rng, 12, 4, 2, 6)
    loud = [weights[0] * np.repeat([10, 1, 1, 1], 6)[:, None], *weights[1:]]
    one, other = (
        b.numpy(b.Qwen3MultiHeadAttention(12, 4, 2, 6, *map(b.array, w))(b.array(x))) for w in (weights, loud)
    )
    assert_close(
        other, one, atol=1e-3, idea="the norm runs over the D numbers of one head, not over all heads"
    )


@pytest.mark.task("1.3.3")
def test_attention_layer_keeps_the_type(b, rng):
    """bf16 weights and inputs give a bf16 output, near the exact one."""
    x, weights = rng.normal(size=(1, 5, 16)), layer_weights(rng, 16, 4, 2, 8)
    layer = b.Qwen3MultiHeadAttention(16, 4, 2, 8, *(b.array(w, "bfloat16") for w in weights))
    actual = layer(b.array(x, "bfloat16"), "causal")
    assert actual.dtype == b.dtype("bfloat16"), "the layer must return the type that it was given"
    expected = layer64(x, weights, 4, 2, 8, causal64(5, 5))
    assert_close(b.numpy(actual), expected, atol=0.05, idea="the layer in bf16 is far from the exact one")
