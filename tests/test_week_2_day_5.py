"""Week 2 Day 5: flash attention on the device, with our meaning of "causal". Oracles: NumPy in float64, and Day 4."""

import numpy as np
import pytest

from support.close import OR_EARLIER, assert_close
from support.qwen3_layer import causal64
from tiny_llm_course.grading.flash import flash64

HEADS = [(4, 4), (6, 2), (3, 1)]  # (H, Hkv)
MASKS = [(3, 5), (5,), (3, 1), (6, 3, 5), (2, 1, 3, 5), (1, 6, 1, 5), (2, 6, 3, 5)]


def inputs(rng, H, Hkv, L, S, D=8):
    return rng.normal(size=(2, H, L, D)), *rng.normal(size=(2, 2, Hkv, S, D))


def call(b, attention, query, key, value, mask=None, **options) -> np.ndarray:
    mask = b.array(mask) if isinstance(mask, np.ndarray) else mask
    return b.numpy(attention(*map(b.array, (query, key, value)), mask=mask, **options))


def assert_attention(actual, expected, idea: str, atol: float = 1e-5) -> None:
    assert not np.isnan(actual).any(), f"NaN in the output; {idea}"
    assert_close(actual, expected, atol=atol, idea=idea)


# 2.5.1: one call of the kernel


@pytest.mark.task("2.5.1")
@pytest.mark.parametrize(("H", "Hkv"), HEADS)
def test_fused_attention_equals_numpy(b, rng, H, Hkv):
    """Few K/V heads as they are, scale 1/√D, no mask."""
    query, key, value = inputs(rng, H, Hkv, 3, 5)
    idea = f"{H} query heads over {Hkv} K/V heads, scale 1/√D, every query sees every key"
    assert_attention(call(b, b.fused_attention, query, key, value), flash64(query, key, value), idea)


@pytest.mark.task("2.5.1")
@pytest.mark.parametrize("scale", [1.0, 0.3, 0.0])
def test_fused_attention_uses_the_given_scale(b, rng, scale):
    """A given scale replaces 1/√D, also 0.0; it is not put on the query as well."""
    query, key, value = inputs(rng, 4, 2, 3, 5)
    idea = f"the given scale, {scale}, goes to the kernel once; only None asks for 1/√D" + OR_EARLIER
    actual = call(b, b.fused_attention, query, key, value, scale=scale)
    assert_attention(actual, flash64(query, key, value, scale), idea)


@pytest.mark.task("2.5.1")
@pytest.mark.parametrize("shape", MASKS)
def test_fused_attention_adds_any_mask_that_broadcasts(b, rng, shape):
    """The kernel gets the mask that Day 4 gets."""
    query, key, value = inputs(rng, 6, 2, 3, 5)
    mask = rng.normal(size=shape)
    idea = f"a mask of shape {shape} broadcasts to (B, H, L, S) and is added" + OR_EARLIER
    actual = call(b, b.fused_attention, query, key, value, mask)
    assert_attention(actual, flash64(query, key, value, mask=mask), idea)


@pytest.mark.task("2.5.1")
def test_fused_attention_knows_causality_of_a_square(b, rng):
    """is_causal with L = S: query i sees keys 0 … i."""
    query, key, value = inputs(rng, 4, 2, 5, 5)
    actual = call(b, b.fused_attention, query, key, value, is_causal=True)
    idea = "is_causal goes to the kernel: with L = S, query i sees the keys up to its own"
    assert_attention(actual, flash64(query, key, value, mask=causal64(5, 5)), idea)


@pytest.mark.task("2.5.1")
@pytest.mark.parametrize("shape", [(3, 5), (2, 1, 3, 5), (2, 1, 1, 5), (2, 4, 3, 5)])
def test_fused_attention_gives_0_where_nothing_is_seen(b, rng, shape):
    """Whatever the kernel leaves in the row of a query that sees nothing, NaN or a mean: the result is exactly 0."""
    query, key, value = inputs(rng, 4, 2, 3, 5)
    mask = rng.normal(size=shape)
    mask[..., -1, :] = -np.inf
    actual = call(b, b.fused_attention, query, key, value, mask)
    idea = "a query that sees no key gives 0: find it in the mask and replace its row (0 · NaN is NaN)"
    assert_attention(actual, flash64(query, key, value, mask=mask), idea + OR_EARLIER)
    assert (actual[:, :, -1] == 0).all(), "a query that sees no key gives exactly 0"


@pytest.mark.task("2.5.1")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_fused_attention_converts_the_mask(b, rng, dtype):
    """bf16 queries with a float32 mask, and the reverse: kernels want one type, and give query's back."""
    query, key, value = (b.array(array, dtype) for array in inputs(rng, 4, 2, 3, 5))
    mask = np.where(rng.random((3, 5)) < 0.3, -np.inf, 0.0)
    mask[:, 0] = 0
    for kind in ("float32", "bfloat16"):
        actual = b.fused_attention(query, key, value, mask=b.array(mask, kind))
        assert actual.dtype == b.dtype(dtype), "attention must return the type of the query"
        idea = f"a {kind} mask for {dtype} queries: give the kernel the mask in query's type" + OR_EARLIER
        expected = flash64(*map(b.numpy, (query, key, value)), mask=mask)
        assert_attention(b.numpy(actual), expected, idea, atol=0.03 if dtype == "bfloat16" else 1e-5)


@pytest.mark.task("2.5.1")
def test_fused_attention_repeats_no_head_in_memory(b):
    """One query token over 512 keys, 16 heads over 2: less memory than one copy of K."""
    query = b.array(np.ones((1, 16, 1, 128)))
    key, value = (b.array(np.ones((1, 2, 512, 128))) for _ in range(2))
    peak, bytes_of_key = b.peak_bytes(lambda: b.fused_attention(query, key, value)), 2 * 512 * 128 * 4
    assert peak < bytes_of_key, (
        f"{peak:,} bytes beside the inputs, and K has {bytes_of_key:,}: K or V was copied. "
        "The kernels take few K/V heads as they are"
    )


# 2.5.2: our meaning of the mask


@pytest.mark.task("2.5.2")
@pytest.mark.parametrize(
    ("H", "Hkv", "L", "S"),
    [(4, 4, 6, 6), (6, 2, 1, 1), (6, 2, 1, 40), (3, 1, 3, 8), (6, 2, 2, 9), (3, 1, 7, 8)],
)
def test_device_attention_is_causal_from_the_last_key(b, rng, H, Hkv, L, S):
    """The last query sees all S keys, each query before it one less, whatever corner the kernel starts from.

    Of one query, as in a decode step, "causal" hides none.
    """
    query, key, value = inputs(rng, H, Hkv, L, S)
    actual = call(b, b.flash_attention_device, query, key, value, "causal")
    expected = flash64(query, key, value, mask=causal64(L, S))
    idea = f"L={L}, S={S}: query i is at position S - L + i"
    upper_left = np.where(np.arange(S) <= np.arange(L)[:, None], 0.0, -np.inf)
    if L < S and np.allclose(actual, flash64(query, key, value, mask=upper_left), atol=1e-4):
        idea += ". Your diagonal starts in the upper left corner: query i saw keys 0 … i"
    elif L < S and np.allclose(actual, flash64(query, key, value), atol=1e-4):
        idea += ". Your queries saw every key: the word was lost"
    assert_attention(actual, expected, idea)


@pytest.mark.task("2.5.2")
@pytest.mark.parametrize(("L", "S"), [(4, 3), (2, 1)])
def test_device_attention_refuses_causal_with_more_queries_than_keys(b, rng, L, S):
    """Kernels accept L > S and give some queries numbers without a meaning; we raise ValueError."""
    query, key, value = inputs(rng, 2, 1, L, S)
    try:
        call(b, b.flash_attention_device, query, key, value, "causal")
    except ValueError as error:
        assert str(L) in str(error) and str(S) in str(error), f"the message must name {L} and {S}: {error}"
    else:
        pytest.fail(f'mask="causal" must raise ValueError: {L} queries need at least {L} keys, not {S}')


@pytest.mark.task("2.5.2")
@pytest.mark.parametrize("mask", [None, "causal", "array"])
@pytest.mark.parametrize(("L", "S"), [(9, 9), (4, 11), (1, 7)])
def test_device_attention_equals_tiled_attention(b, rng, L, S, mask):
    """Day 4 and Day 5 are one function by two paths."""
    query, key, value = inputs(rng, 4, 2, L, S)
    mask = rng.normal(size=(2, 1, L, S)) if mask == "array" else mask
    ours, device = (
        call(b, b.flash_attention, query, key, value, mask, scale=0.4, path=path)
        for path in ("tiled", "device")
    )
    assert_attention(device, ours, f"L={L}, S={S}: the device's path and the tiles of Day 4 differ")


@pytest.mark.task("2.5.2")
@pytest.mark.parametrize("shape", ["(L, S)", "(B, 1, L, S)"])
@pytest.mark.parametrize("L", [3, 1])
def test_device_attention_hides_the_tail_of_a_static_cache(b, rng, L, shape):
    """A cache of 16 places holds 7 tokens, the last L of them new; the other places hold large rubbish."""
    query, key, value = inputs(rng, 4, 2, L, 16)
    key[..., 7:, :], value[..., 7:, :] = 50.0, 1e6
    mask = np.full((L, 16), -np.inf)
    mask[:, :7] = causal64(L, 7)
    given = mask if shape == "(L, S)" else np.broadcast_to(mask, (2, 1, L, 16)).copy()
    first = (query, key[..., :7, :], value[..., :7, :])
    idea = f"a mask of {shape} hides the unused tail; it must reach the kernel as it is"
    actual = call(b, b.flash_attention_device, query, key, value, given)
    assert_attention(actual, flash64(*first, mask=causal64(L, 7)), idea)


@pytest.mark.task("2.5.2")
def test_device_attention_gives_0_to_an_idle_row(b, rng):
    """A row of the batch without a request sees nothing at all: exactly 0, as on Day 4."""
    query, key, value = inputs(rng, 4, 2, 1, 6)
    mask = np.zeros((2, 1, 1, 6))
    mask[1] = -np.inf
    actual = call(b, b.flash_attention_device, query, key, value, mask)
    idea = "an idle row of the batch sees no key and gives 0" + OR_EARLIER
    assert_attention(actual, flash64(query, key, value, mask=mask), idea)


@pytest.mark.task("2.5.2")
@pytest.mark.parametrize(("L", "S"), [(5, 5), (3, 9), (1, 9)])
def test_device_attention_of_bf16(b, rng, L, S):
    """bf16 in, bf16 out, near the exact result, also where the port makes a mask of its own."""
    query, key, value = (b.array(array, "bfloat16") for array in inputs(rng, 4, 2, L, S))
    actual = b.flash_attention_device(query, key, value, mask="causal")
    assert actual.dtype == b.dtype("bfloat16"), "attention must return the type of the query"
    expected = flash64(*map(b.numpy, (query, key, value)), mask=causal64(L, S))
    assert_attention(b.numpy(actual), expected, "bf16 is far from the exact result" + OR_EARLIER, atol=0.03)


@pytest.mark.task("2.5.2")
def test_device_attention_leaves_its_inputs_as_they_are(b, rng):
    """Query, key, value and mask are the same afterwards, also where a row sees nothing."""
    values = (*inputs(rng, 4, 2, 3, 5), np.where(np.arange(3)[:, None] == 1, -np.inf, np.zeros((3, 5))))
    given = tuple(map(b.array, values))
    b.numpy(b.flash_attention_device(*given[:3], mask=given[3]))
    for array, before in zip(given, values, strict=True):
        assert_close(b.numpy(array), before, idea="an input was written to")
