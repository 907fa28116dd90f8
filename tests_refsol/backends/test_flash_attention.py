"""Flash attention beyond the day tests: what holds for any shapes and any order, and what the given code refuses."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.close import assert_close
from support.qwen3_layer import causal64
from tiny_llm_course.grading.flash import flash64, statistics64


def normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


@st.composite
def partial_results(draw):
    """Three (o, m, l) over 2 heads of 3 queries; any row of any of them may have seen nothing."""
    parts = []
    for seed in draw(st.lists(st.integers(0, 2**16), min_size=3, max_size=3, unique=True)):
        mask = np.array(draw(st.lists(st.sampled_from([0.0, -np.inf, 30.0, -1e4]), min_size=3, max_size=3)))
        mask = np.broadcast_to(mask[:, None], (3, 4))
        parts.append(statistics64(normal(seed, 2, 3, 5), *normal(seed + 1, 2, 2, 4, 5), mask=mask))
    return parts


def merged(b, *parts):
    result = b.merge_attention(*(tuple(map(b.array, part)) for part in parts))
    return tuple(map(b.numpy, result))


def assert_same(actual, expected, idea: str) -> None:
    for mine, right in zip(actual, expected, strict=True):
        assert_close(mine, right, atol=1e-4, rtol=1e-4, idea=idea)


@settings(max_examples=40)
@given(parts=partial_results())
def test_merge_is_associative_and_free_of_order(b, parts):
    one, two, three = parts
    assert_same(merged(b, one, two), merged(b, two, one), "a and b, b and a")
    left, right = merged(b, merged(b, one, two), three), merged(b, one, merged(b, two, three))
    assert_same(left, right, "(a and b) and c, a and (b and c)")


@settings(max_examples=60)
@given(
    L=st.integers(1, 9),
    past=st.integers(0, 9),
    tile_size=st.integers(1, 20),
    heads=st.sampled_from([(1, 1), (4, 2), (6, 1)]),
    mask=st.sampled_from([None, "causal", "array"]),
    seed=st.integers(0, 2**16),
)
def test_both_paths_equal_numpy_for_any_shape(b, L, past, tile_size, heads, mask, seed):
    (H, Hkv), S = heads, L + past
    query, key, value = normal(seed, 2, H, L, 4), *normal(seed + 1, 2, 2, Hkv, S, 4)
    array = np.where(normal(seed + 2, 2, 1, L, S) < -0.5, -np.inf, 0.0)  # some rows may see nothing
    numbers = {None: np.zeros((L, S)), "causal": causal64(L, S), "array": array}[mask]
    arrays, given_mask = map(b.array, (query, key, value)), b.array(array) if mask == "array" else mask
    query_, key_, value_ = arrays
    expected = flash64(query, key, value, mask=numbers)
    tiled = b.flash_attention_tiled(query_, key_, value_, mask=given_mask, tile_size=tile_size)
    assert_close(b.numpy(tiled), expected, idea="tiled")
    device = b.flash_attention_device(query_, key_, value_, mask=given_mask)
    assert_close(b.numpy(device), expected, idea="device")


@pytest.mark.parametrize("path", ["tiled", "device"])
def test_both_paths_refuse_what_has_no_meaning(b, path):
    query, key = b.array(np.ones((1, 4, 2, 8))), b.array(np.ones((1, 3, 2, 8)))
    with pytest.raises(ValueError, match="4 query heads cannot share 3"):
        b.flash_attention(query, key, key, path=path)
    with pytest.raises(ValueError, match="'sliding' is unknown"):
        b.flash_attention(query, query, query, mask="sliding", path=path)
    with pytest.raises(ValueError, match="L=2, S=1"):
        b.flash_attention(query, query[:, :, :1], query[:, :, :1], mask="causal", path=path)


def test_flash_attention_knows_two_paths(b):
    query = b.array(np.ones((1, 1, 2, 4)))
    with pytest.raises(ValueError, match='path \'fused\' is unknown: give "tiled" or "device"'):
        b.flash_attention(query, query, query, path="fused")


@pytest.mark.parametrize("tile_size", [0, -1])
def test_tiles_have_a_size(b, tile_size):
    query = b.array(np.ones((1, 1, 2, 4)))
    with pytest.raises(ValueError, match=f"tile_size must be positive, not {tile_size}"):
        b.flash_attention_tiled(query, query, query, tile_size=tile_size)
