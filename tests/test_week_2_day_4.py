"""Week 2 Day 4: flash attention, tile by tile, and the statistics that can be merged. Oracle: NumPy in float64."""

from itertools import pairwise, permutations

import numpy as np
import pytest

from support.close import OR_EARLIER, assert_close
from support.masks import FAR_STARTS, MANY, assert_no_loop, assert_shows, assert_traces
from support.qwen3_layer import causal64
from tiny_llm_course.grading.flash import flash64, statistics64

MASKS = [(3, 5), (5,), (3, 1), (6, 3, 5), (2, 1, 3, 5), (1, 6, 1, 5), (2, 6, 3, 5)]
NAMES = ("o, the sum of exp(score - m) · value", "m, the largest score", "l, the sum of exp(score - m)")


def assert_statistics(actual, expected, idea: str | tuple[str, str, str], atol: float = 1e-5) -> None:
    """Compares m first, because o and l only mean something beside the right m. `idea`: one, or one for each."""
    for i in (1, 2, 0):
        said = f"{NAMES[i]}: {idea if isinstance(idea, str) else idea[i]}"
        assert not np.isnan(actual[i]).any(), f"NaN in {said}: -inf - (-inf) and 0 · inf are no numbers"
        assert_close(actual[i], expected[i], atol=atol, idea=said)


def arrays(b, *values, dtype=None):
    return tuple(b.array(value, dtype) for value in values)


def statistics(b, query, key, value, mask=None, **options):
    mask = None if mask is None else b.array(mask)
    return tuple(map(b.numpy, b.attention_statistics(*arrays(b, query, key, value), mask=mask, **options)))


def tiled(b, query, key, value, mask=None, **options):
    mask = b.array(mask) if isinstance(mask, np.ndarray) else mask
    out = b.flash_attention_tiled(*arrays(b, query, key, value), mask=mask, **options)
    return tuple(map(b.numpy, out)) if isinstance(out, tuple) else b.numpy(out)


def assert_tiled(actual, expected, idea: str, atol: float = 1e-5) -> None:
    """The walk rests on four tasks, so every failure of it may be one of theirs."""
    idea = idea.removesuffix(OR_EARLIER) + OR_EARLIER
    assert not np.isnan(actual).any(), f"NaN in the output; {idea}"
    assert_close(actual, expected, atol=atol, idea=idea)


def inputs(rng, H, Hkv, L, S, D=8, batch=(2,)):
    return rng.normal(size=(*batch, H, L, D)), *rng.normal(size=(2, *batch, Hkv, S, D))


# 2.4.1: what some keys say


@pytest.mark.task("2.4.1")
@pytest.mark.parametrize(("batch", "H", "Hkv"), [((), 4, 4), ((), 6, 2), ((2,), 6, 2), ((2, 3), 3, 1)])
def test_statistics_equal_numpy(b, rng, batch, H, Hkv):
    """o, m and l of grouped attention, not divided, for any leading axes."""
    query, key, value = inputs(rng, H, Hkv, 3, 5, batch=batch)
    ideas = (
        f"{H} query heads read {Hkv} K/V heads in groups of neighbours, and nothing is divided yet",
        f"{H} query heads meet {Hkv} K/V heads in groups of neighbours, with the scale 1/√D, once",
        "every weight is exp(score - m), with the m of its own row, and nothing is divided yet",
    )
    assert_statistics(statistics(b, query, key, value), statistics64(query, key, value), ideas)


@pytest.mark.task("2.4.1")
@pytest.mark.parametrize("scale", [1.0, 0.3, 0.0])
def test_statistics_use_the_given_scale(b, rng, scale):
    """A given scale replaces 1/√D, also 0.0, which makes every score 0 and every weight 1."""
    query, key, value = inputs(rng, 4, 2, 3, 5)
    idea = f"the given scale, {scale}, must replace 1/√D, once; only None asks for the default" + OR_EARLIER
    actual = statistics(b, query, key, value, scale=scale)
    assert_statistics(actual, statistics64(query, key, value, scale), idea)


@pytest.mark.task("2.4.1")
@pytest.mark.parametrize("shape", MASKS)
def test_statistics_add_any_mask_that_broadcasts(b, rng, shape):
    """The mask broadcasts to (B, H, L, S), is added after the scale, and -inf leaves no weight."""
    query, key, value = inputs(rng, 6, 2, 3, 5)
    mask = rng.normal(size=shape)
    mask[..., -1] -= np.inf if shape[-1] > 1 else 0
    idea = f"a mask of shape {shape} broadcasts to (B, H, L, S) and is added after the scale" + OR_EARLIER
    actual = statistics(b, query, key, value, mask, scale=0.2)
    assert_statistics(actual, statistics64(query, key, value, 0.2, mask), idea)


@pytest.mark.task("2.4.1")
def test_statistics_of_queries_that_see_nothing_are_empty(b, rng):
    """A query whose keys are all hidden has o = 0, m = -inf, l = 0; its neighbours do not notice."""
    query, key, value = inputs(rng, 4, 2, 3, 5)
    mask = np.zeros((2, 1, 3, 5))
    mask[0, 0, 1], mask[1] = -np.inf, -np.inf
    idea = "a query that sees nothing has o = 0, m = -inf, l = 0: shift its scores by 0, not by -inf"
    actual = statistics(b, query, key, value, mask)
    assert_statistics(actual, statistics64(query, key, value, mask=mask), idea + OR_EARLIER)


@pytest.mark.task("2.4.1")
@pytest.mark.parametrize("offset", [1e4, -1e4])
def test_statistics_stay_finite_for_large_scores(b, rng, offset):
    """Scores around ±1e4: exp(1e4) is infinite and exp(-1e4) is 0, exp(score - m) is neither."""
    query, key, value = inputs(rng, 2, 1, 3, 5)
    mask = np.full((3, 5), offset)
    actual = statistics(b, query, key, value, mask)
    for name, array in zip(NAMES, actual, strict=True):
        assert np.isfinite(array).all(), f"{name} is not finite: subtract the largest score before exp"
    idea = "subtract the largest score of each row before exp, whatever its sign" + OR_EARLIER
    assert_statistics(actual, statistics64(query, key, value, mask=mask), idea, atol=0.01)


@pytest.mark.task("2.4.1")
def test_statistics_of_bf16_are_float32(b):
    """bf16 in, float32 out. 254 and 255 are exact in bf16; divided by √3 in bf16 they would be equal."""
    query, key = np.ones((2, 1, 3)), np.array([[[84.0, 85, 85], [85, 85, 85]]])
    value = np.array([[[0.0], [1.0]]])
    actual = b.attention_statistics(*arrays(b, query, key, value, dtype="bfloat16"))
    for name, array in zip(NAMES, actual, strict=True):
        assert array.dtype == b.dtype("float32"), f"{name} must be float32, also for bf16 inputs"
    idea = (
        "the product of bf16 arrays becomes float32 first; scale, mask, exp and the sum follow" + OR_EARLIER
    )
    expected = statistics64(query, key, value)
    assert_statistics(tuple(map(b.numpy, actual)), expected, idea, atol=0.005)


@pytest.mark.task("2.4.1")
def test_statistics_add_the_mask_in_float32(b):
    """100 - 0.25 is 100 in bf16: a bf16 mask is added to float32 scores."""
    query, key, value = np.full((2, 1, 4), 10.0), np.full((1, 2, 4), 5.0), np.array([[[0.0], [1.0]]])
    mask = np.array([[0.0, -0.25]])
    actual = b.attention_statistics(
        *arrays(b, query, key, value, dtype="bfloat16"), mask=b.array(mask, "bfloat16")
    )
    idea = "the mask is added in float32: -0.25 vanished beside 100" + OR_EARLIER
    expected = statistics64(query, key, value, mask=mask)
    assert_statistics(tuple(map(b.numpy, actual)), expected, idea, atol=0.005)


@pytest.mark.task("2.4.1")
def test_statistics_repeat_no_head_in_memory(b):
    """One query token over 512 keys, 16 heads over 2: less memory than one copy of K."""
    query = b.array(np.ones((1, 16, 1, 128)))
    key, value = (b.array(np.ones((1, 2, 512, 128))) for _ in range(2))
    peak, bytes_of_key = b.peak_bytes(lambda: b.attention_statistics(query, key, value)[0]), 2 * 512 * 128 * 4
    assert peak < bytes_of_key, (
        f"{peak:,} bytes beside the inputs, and K has {bytes_of_key:,}: K or V was copied. As on Day 1.3, give each "
        "K/V head the queries of its group as more rows"
    )


# 2.4.2: two sets of keys


def parts_of(rng, cuts, S=13, hidden=None, loud=0.0):
    """The statistics of ranges of keys, and of all of them; every range may have scores of another size."""
    query, key, value = inputs(rng, 4, 2, 3, S)
    mask = np.zeros((3, S))
    if hidden is not None:
        mask[:, hidden] = -np.inf
    edges = [0, *cuts, S]
    for i, (start, stop) in enumerate(pairwise(edges)):
        mask[:, start:stop] += loud * (-1) ** i * i
    ranges = [slice(*edge) for edge in pairwise(edges)]
    parts = [statistics64(query, key[..., r, :], value[..., r, :], mask=mask[:, r]) for r in ranges]
    return parts, statistics64(query, key, value, mask=mask)


def merge(b, parts):
    """Merged from the left; as NumPy arrays."""
    merged = arrays(b, *parts[0])
    for part in parts[1:]:
        merged = b.merge_attention(merged, arrays(b, *part))
    return tuple(map(b.numpy, merged))


@pytest.mark.task("2.4.2")
@pytest.mark.parametrize("cut", [1, 6, 12])
def test_merge_of_two_ranges_equals_one(b, rng, cut):
    """Keys [0, cut) and [cut, 13) together are keys [0, 13): the larger m, and o and l brought to it."""
    parts, whole = parts_of(rng, [cut])
    ideas = (
        "each side's o shrinks by exp(its own m - the larger m), as its l does",
        "the larger of the two maxima holds for both",
        "each side's l shrinks by exp(its own m - the larger m), which is 1 for one of them",
    )
    assert_statistics(merge(b, parts), whole, ideas)


@pytest.mark.task("2.4.2")
@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_merge_of_three_ranges_in_any_order_equals_one(b, rng, order):
    """The ranges' scores lie 20 apart, so that the maximum comes first, in the middle or last."""
    parts, whole = parts_of(rng, [4, 9], loud=20.0)
    idea = f"merging ranges {order} must give what all keys give: bring BOTH sides to the larger maximum"
    assert_statistics(merge(b, [parts[i] for i in order]), whole, idea)


@pytest.mark.task("2.4.2")
@pytest.mark.parametrize("loud", [1e4, -1e4])
def test_merge_of_scores_far_apart_stays_finite(b, rng, loud):
    """One range's scores are 10,000 larger: exp of the difference, in the wrong direction, is infinite."""
    parts, whole = parts_of(rng, [5], loud=loud)
    idea = "exp(m - larger m) is at most 1; exp(larger - m) overflows" + OR_EARLIER
    assert_statistics(merge(b, parts), whole, idea, atol=0.01)


@pytest.mark.task("2.4.2")
@pytest.mark.parametrize("hidden", [slice(0, 5), slice(5, 13), slice(0, 13)], ids=["first", "second", "both"])
def test_merge_with_a_side_that_saw_nothing(b, rng, hidden):
    """o = 0, m = -inf, l = 0 on either side changes nothing; on both sides it stays so, without NaN."""
    parts, whole = parts_of(rng, [5], hidden=hidden)
    idea = "a side that saw nothing (m = -inf, l = 0) adds nothing; two of them stay empty"
    assert_statistics(merge(b, parts), whole, idea + OR_EARLIER)


@pytest.mark.task("2.4.2")
def test_merge_looks_at_every_query_by_itself(b, rng):
    """Query 0 saw nothing on the left, query 1 nothing on the right, query 2 both."""
    query, key, value = inputs(rng, 4, 2, 3, 6)
    mask = np.zeros((3, 6))
    mask[0, :3], mask[1, 3:] = -np.inf, -np.inf
    halves = [slice(0, 3), slice(3, 6)]
    parts = [statistics64(query, key[..., r, :], value[..., r, :], mask=mask[:, r]) for r in halves]
    idea = "each query has its own maximum on each side" + OR_EARLIER
    assert_statistics(merge(b, parts), statistics64(query, key, value, mask=mask), idea)


@pytest.mark.task("2.4.2")
def test_merge_leaves_its_inputs_as_they_are(b, rng):
    """Both partial results can be used again, for instance with a third."""
    parts, _ = parts_of(rng, [5], loud=2.0)
    left, right = (arrays(b, *part) for part in parts)
    b.numpy(b.merge_attention(left, right)[0])
    for given, part in ((left, parts[0]), (right, parts[1])):
        for array, before in zip(given, part, strict=True):
            idea = "merge_attention changed an input: `x *= y` writes into x; write `x * y`"
            assert_close(b.numpy(array), before, idea=idea)


# 2.4.3: the division


@pytest.mark.task("2.4.3")
def test_finish_divides_once(b, rng):
    """The output is o / l, whatever m is."""
    o, m, l = rng.normal(size=(2, 4, 3, 8)), rng.normal(size=(2, 4, 3)), rng.uniform(1, 9, size=(2, 4, 3))
    actual = b.numpy(b.finish_attention(arrays(b, o, m, l), b.dtype("float32")))
    assert_close(actual, o / l[..., None], idea="the output is o / l; m has done its work")


@pytest.mark.task("2.4.3")
def test_finish_gives_0_to_queries_that_saw_nothing(b, rng):
    """0 / 0 is NaN: a query with l = 0 gives exactly 0, its neighbours their mean."""
    o, l = rng.normal(size=(4, 3, 8)), np.full((4, 3), 2.0)
    o[:, 1], l[:, 1] = 0, 0
    m = np.where(l == 0, -np.inf, 0.0)
    actual = b.numpy(b.finish_attention(arrays(b, o, m, l), b.dtype("float32")))
    idea = "a query that saw nothing has o = 0 and l = 0, and 0 / 0 is NaN: its output is 0"
    assert not np.isnan(actual).any(), idea
    assert_close(actual, o / 2, atol=0, idea=idea + OR_EARLIER)


@pytest.mark.task("2.4.3")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_finish_has_the_wanted_type(b, rng, dtype):
    """The division happens in float32 and the result comes in `dtype`: 70,000 / 10 fits into float16."""
    o, m, l = np.full((2, 3, 4), 70000.0), np.zeros((2, 3)), np.full((2, 3), 10.0)
    actual = b.finish_attention(arrays(b, o, m, l), b.dtype(dtype))
    assert actual.dtype == b.dtype(dtype), f"the output must be {dtype}"
    assert_close(b.numpy(actual), o / 10, rtol=0.005, idea="divide in float32 first, then convert")


# 2.4.4: a tile of the mask


def mask_tile(b, mask, L, S, rows, columns) -> np.ndarray:
    """As an array of the tile's size; None stands for zeros."""
    mask = b.array(mask) if isinstance(mask, np.ndarray) else mask
    tile = b.mask_tile(mask, L, S, slice(*rows), slice(*columns))
    size = (rows[1] - rows[0], columns[1] - columns[0])
    return np.zeros(size) if tile is None else b.numpy(tile)


@pytest.mark.task("2.4.4")
@pytest.mark.parametrize(("L", "S"), [(7, 7), (4, 9), (1, 6)])
@pytest.mark.parametrize("size", [1, 2, 3, 10])
def test_causal_tiles_make_up_the_causal_mask(b, L, S, size):
    """Each tile is its part of causal_mask(L, S): query i is at position S - L + i."""
    for top in range(0, L, size):
        for left in range(0, S, size):
            rows, columns = (top, min(top + size, L)), (left, min(left + size, S))
            idea = f"queries {rows}, keys {columns} of L={L}, S={S}: query i is at position S - L + i of the text"
            expected = causal64(L, S)[slice(*rows), slice(*columns)]
            assert_close(mask_tile(b, "causal", L, S, rows, columns), expected, idea=idea)


@pytest.mark.task("2.4.4")
@pytest.mark.parametrize("start", FAR_STARTS)
def test_causal_tiles_are_exact_far_into_a_text(b, start):
    """A tile on the diagonal, 250 to 30,000 tokens into the text: positions are integers, whatever the scores are."""
    S = start + MANY + 3
    L = min(S, 2100)  # so few that a whole mask, which another test forbids, fits into any memory
    rows = (L - 3 - MANY, L - 3)
    for shift in (-2, 0, 3):
        columns = (start + shift, start + shift + MANY)
        actual = mask_tile(b, "causal", L, S, rows, columns)
        idea = f"L={L}, S={S}, queries {rows}, keys {columns}: each sees the keys up to its own position"
        assert_shows(actual, np.arange(start, start + MANY) - columns[0], idea)


@pytest.mark.task("2.4.4")
def test_causal_tiles_are_no_loop(b):
    """A tile of any size is a comparison of two arrays: no Python for each query or key."""
    assert_no_loop(lambda n: b.mask_tile("causal", n, n, slice(0, n), slice(0, n)), "a loop over a tile")


@pytest.mark.task("2.4.4")
@pytest.mark.parametrize("shape", [(), *MASKS])
def test_array_tiles_are_slices(b, rng, shape):
    """A mask of any shape that broadcasts: the tile is what the whole mask has there."""
    mask = rng.normal(size=shape)
    whole = np.broadcast_to(mask, np.broadcast_shapes(shape, (3, 5)))
    for rows, columns in [((0, 2), (0, 3)), ((2, 3), (3, 5)), ((1, 3), (1, 2))]:
        expected = whole[..., slice(*rows), slice(*columns)]
        actual = mask_tile(b, mask, 3, 5, rows, columns)
        idea = (
            f"a mask of shape {shape}: an axis of length 1 stands for all queries or keys and is not sliced"
        )
        pairs = zip(reversed(actual.shape), reversed(expected.shape), strict=False)
        assert all(mine in (1, right) for mine, right in pairs), f"{idea}; the tile is {actual.shape}"
        assert_close(np.broadcast_to(actual, expected.shape), expected, idea=idea)


@pytest.mark.task("2.4.4")
def test_no_mask_hides_nothing(b):
    """None: nothing to add, in any tile."""
    assert b.mask_tile(None, 4, 9, slice(0, 2), slice(3, 6)) is None, "no mask has no tiles: return None"


@pytest.mark.task("2.4.4")
@pytest.mark.parametrize("mask", ["causal", "padding"])
def test_mask_tiles_hold_no_table_in_memory(b, mask):
    """64 × 64 of 4,096 × 4,096 take kilobytes, not the 64 MiB of the whole mask."""
    mask = b.array(np.zeros((1, 4096))) if mask == "padding" else mask
    peak = b.peak_bytes(lambda: b.mask_tile(mask, 4096, 4096, slice(2048, 2112), slice(2048, 2112)) + 0)
    assert peak < 2**20, f"{peak:,} bytes for a tile of 64 × 64: the whole mask was built, or was copied"


# 2.4.5: the walk


def recognise_walk(actual, query, key, value, mask, size, idea: str) -> str:
    """The name of the wrong walk over the tiles of keys that computes `actual`; `idea` when it is not one of them."""
    starts = range(0, key.shape[-2], size)
    keys = [slice(start, start + size) for start in starts]
    alone = [flash64(query, key[..., r, :], value[..., r, :], mask=mask[..., r]) for r in keys]
    mean = sum(alone) / len(alone)
    full = slice(0, key.shape[-2] // size * size or size)
    wrong_walks = {
        "only the last tile of keys is left: merge each tile with what came before": alone[-1],
        "the tiles were divided one by one and then averaged: divide once, after the last": mean,
        "the last tile, which is not full, is missing": flash64(
            query, key[..., full, :], value[..., full, :], mask=mask[..., full]
        ),
        "the mask is lost on its way to the tiles": flash64(query, key, value),
        "the scale is missing": flash64(query, key, value, 1.0, mask),
    }
    fits = (name for name, walk in wrong_walks.items() if np.allclose(actual, walk, atol=1e-4))
    return ", or: ".join(fits) or idea


@pytest.mark.task("2.4.5")
@pytest.mark.parametrize(
    ("L", "S", "tile_size", "mask"),
    [
        (*((10, 10), (5, 19), (1, 15))[(i + j) % 3], size, mask)
        for i, size in enumerate((1, 7, 10, 64))
        for j, mask in enumerate((None, "causal", "array"))
    ],
)
def test_tiled_attention_equals_numpy(b, rng, L, S, tile_size, mask):
    """Any tile size: one, one that divides nothing, one that fits, one larger than all."""
    query, key, value = inputs(rng, 4, 2, L, S, D=6)
    numbers = {None: np.zeros((L, S)), "causal": causal64(L, S), "array": rng.normal(size=(2, 4, L, S))}[mask]
    actual = tiled(b, query, key, value, numbers if mask == "array" else mask, tile_size=tile_size)
    expected = flash64(query, key, value, mask=numbers)
    idea = f"L={L}, S={S}, tiles of {tile_size}, mask {mask}: every query sees each of its keys once"
    if not np.allclose(actual, expected, atol=1e-4):
        idea = recognise_walk(actual, query, key, value, numbers, tile_size, idea)
    assert_tiled(actual, expected, idea)


@pytest.mark.task("2.4.5")
@pytest.mark.parametrize("mask", [None, "causal", "array"])
def test_tiled_attention_works_where_its_inputs_are(b, rng, mask):
    """Tiles of the mask are made on the device of the scores, and nothing is read: a compiler can trace the whole."""
    given = [rng.normal(size=(1, heads, 9, 8)) for heads in (4, 2, 2)] + [rng.normal(size=(9, 9))] * (
        mask == "array"
    )
    made = assert_traces(
        b,
        lambda q, k, v, m=mask: b.flash_attention_tiled(q, k, v, mask=m, tile_size=4),
        *arrays(b, *given),
        idea="hand the device on to `mask_tile`, and read no number of an array",
    )
    assert tuple(made.shape) == (1, 4, 9, 8), f"9 queries of 4 heads, not {tuple(made.shape)}"


@pytest.mark.task("2.4.5")
@pytest.mark.parametrize(("batch", "H", "Hkv"), [((), 4, 4), ((3,), 6, 2), ((2, 2), 3, 1)])
def test_tiled_attention_shares_heads(b, rng, batch, H, Hkv):
    """Grouped heads and any leading axes, as on Day 1.3."""
    query, key, value = inputs(rng, H, Hkv, 5, 9, batch=batch)
    actual = tiled(b, query, key, value, "causal", tile_size=4)
    idea = f"{H} query heads over {Hkv} K/V heads, batch {batch}: slice queries and keys, not heads"
    assert_tiled(actual, flash64(query, key, value, mask=causal64(5, 9)), idea)


@pytest.mark.task("2.4.5")
@pytest.mark.parametrize("scale", [0.3, 0.0])
def test_tiled_attention_uses_the_given_scale(b, rng, scale):
    """A given scale, also 0.0, reaches every tile once."""
    query, key, value = inputs(rng, 4, 2, 5, 9)
    idea = f"the scale {scale} belongs to the scores of every tile, once"
    actual = tiled(b, query, key, value, scale=scale, tile_size=4)
    assert_tiled(actual, flash64(query, key, value, scale), idea)


@pytest.mark.task("2.4.5")
@pytest.mark.parametrize("shape", MASKS)
def test_tiled_attention_takes_any_mask_that_broadcasts(b, rng, shape):
    """One mask for all, one a row of the batch, one a head, one for all queries."""
    query, key, value = inputs(rng, 6, 2, 3, 5)
    mask = rng.normal(size=shape)
    idea = f"a mask of shape {shape} broadcasts to (B, H, L, S), and each tile takes its part"
    actual = tiled(b, query, key, value, mask, tile_size=2)
    assert_tiled(actual, flash64(query, key, value, mask=mask), idea)


@pytest.mark.task("2.4.5")
def test_tiled_attention_gives_0_where_nothing_is_seen(b, rng):
    """Row 0 sees nothing, row 1 nothing in the first tile, row 2 nothing in the last."""
    query, key, value = inputs(rng, 4, 2, 3, 8)
    mask = np.zeros((3, 8))
    mask[0], mask[1, :4], mask[2, 4:] = -np.inf, -np.inf, -np.inf
    actual = tiled(b, query, key, value, mask, tile_size=4)
    idea = "a query that sees nothing gives 0, and one that sees nothing in one tile still sees the others"
    assert_tiled(actual, flash64(query, key, value, mask=mask), idea)
    assert (actual[:, :, 0] == 0).all(), "a query that sees nothing gives exactly 0"


@pytest.mark.task("2.4.5")
@pytest.mark.parametrize("loud", [0, 5, 8], ids=["first", "middle", "last"])
def test_tiled_attention_with_scores_of_10000(b, rng, loud):
    """The largest score may come in any tile: o and l of the tiles before it shrink to nothing."""
    query, key, value = inputs(rng, 2, 1, 3, 9)
    mask = np.zeros((1, 9))
    mask[0, loud] = 1e4
    idea = "the maximum is carried from tile to tile, and what came before it is rescaled"
    actual = tiled(b, query, key, value, mask, tile_size=3)
    assert_tiled(actual, flash64(query, key, value, mask=mask), idea)


@pytest.mark.task("2.4.5")
def test_tiled_attention_takes_more_queries_than_keys_without_causality(b, rng):
    """L > S has a meaning where every query may see every key."""
    query, key, value = inputs(rng, 2, 1, 9, 4)
    idea = "without a mask, queries and keys are unrelated: 9 queries may look at 4 keys"
    assert_tiled(tiled(b, query, key, value, tile_size=3), flash64(query, key, value), idea)


@pytest.mark.task("2.4.5")
def test_tiled_attention_refuses_causal_with_more_queries_than_keys(b, rng):
    """mask="causal" with L > S raises ValueError, as on Day 1.3, and not at the last tile but at once."""
    query, key, value = inputs(rng, 2, 1, 9, 4)
    try:
        tiled(b, query, key, value, "causal", tile_size=3)
    except NotImplementedError:
        raise
    except Exception as error:
        idea = (
            'mask="causal" with L=9 > S=4 has no meaning: the keys include the queries\' own. Compare L with S before '
            "the walk over the tiles, and raise a ValueError that names both"
        )
        assert isinstance(error, ValueError), f"{idea}; now the walk itself fails, with {error!r}"
        assert "9" in str(error) and "4" in str(error), f"{idea}: {error}"
    else:
        pytest.fail('mask="causal" must raise ValueError: 9 queries need at least 9 keys, not 4')


@pytest.mark.task("2.4.5")
@pytest.mark.parametrize(
    ("L", "S", "size"), [(12, 12, 2), (12, 12, 5), (8, 19, 3), (8, 19, 4), (5, 18, 2), (5, 18, 5)]
)
def test_tiled_attention_reads_no_tile_that_is_hidden_from_its_queries(b, rng, L, S, size):
    """Half of the tiles of a causal square are hidden from end to end: they cost time, and must not even be read.

    Behind a past, too, and with tiles that divide nothing: keys and values of hidden tiles may hold NaN.

    For each tile of queries, the tiles of keys that begin behind its last query are NaN, one tile of queries at a time.
    """
    query, key, value = inputs(rng, 2, 1, L, S)
    expected = flash64(query, key, value, mask=causal64(L, S))
    for top in range(0, L, size):
        stop = min(top + size, L)
        hidden = -(-(S - L + stop) // size) * size
        broken = [array.copy() for array in (key, value)]
        for array in broken:
            array[..., hidden:, :] = np.nan
        actual = tiled(b, query, *broken, "causal", tile_size=size)[..., top:stop, :]
        idea = (
            f"L={L}, S={S}, tiles of {size}: queries {top} to {stop - 1} see keys up to {S - L + stop - 1}, and tiles "
            f"from key {hidden} on are hidden from all of them: end the walk before these"
        )
        assert_tiled(actual, expected[..., top:stop, :], idea)


@pytest.mark.task("2.4.5")
@pytest.mark.parametrize("mask", [None, "causal"])
def test_tiled_attention_can_return_its_statistics(b, rng, mask):
    """(o, m, l) of all queries, in float32, o not divided."""
    query, key, value = inputs(rng, 4, 2, 5, 9)
    expected = statistics64(query, key, value, mask=causal64(5, 9) if mask else 0.0)
    actual = tiled(b, query, key, value, mask, tile_size=4, return_statistics=True)
    assert_statistics(actual, expected, "joined over the tiles of queries, not divided by l")


@pytest.mark.task("2.4.5")
def test_statistics_of_two_calls_merge_to_one_attention(b, rng):
    """A past without a mask and the text's own keys under "causal" are attention with L < S: Week 3 needs this."""
    query, key, value = inputs(rng, 4, 2, 5, 12)
    options = {"tile_size": 4, "return_statistics": True}
    ranges = ((slice(0, 7), None), (slice(7, 12), "causal"))
    past, own = (tiled(b, query, key[..., r, :], value[..., r, :], mask, **options) for r, mask in ranges)
    merged = b.merge_attention(arrays(b, *past), arrays(b, *own))
    actual = b.numpy(b.finish_attention(merged, b.dtype("float32")))
    idea = "statistics of the past and of the text's own keys, merged, are causal attention over both"
    assert_tiled(actual, flash64(query, key, value, mask=causal64(5, 12)), idea)


@pytest.mark.task("2.4.5")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("other", ["float32", "bfloat16"])
def test_tiled_attention_has_the_type_of_its_values(b, rng, dtype, other):
    """Values decide the type of the output, not queries and keys; statistics are float32 whatever comes.

    The result is near the exact one: in ten tiles it would not be with statistics in bf16 between them.
    """
    query, key, value = inputs(rng, 4, 2, 9, 40)
    given = (*arrays(b, query, key, dtype=other), *arrays(b, value, dtype=dtype))
    actual = b.flash_attention_tiled(*given, tile_size=4)
    idea = f"queries and keys in {other}, values in {dtype}: the output has the type of the values"
    assert actual.dtype == b.dtype(dtype), f"{idea}, not {actual.dtype}"
    assert_tiled(b.numpy(actual), flash64(*map(b.numpy, given)), idea, atol=0.02)
    for array in b.flash_attention_tiled(*given, tile_size=4, return_statistics=True):
        assert array.dtype == b.dtype("float32"), f"{idea}; statistics are float32, not {array.dtype}"


@pytest.mark.task("2.4.5")
def test_tiled_attention_leaves_its_inputs_as_they_are(b, rng):
    """Query, key, value and mask are the same afterwards."""
    values = (*inputs(rng, 4, 2, 5, 9), rng.normal(size=(5, 9)))
    given = arrays(b, *values)
    b.numpy(b.flash_attention_tiled(*given[:3], mask=given[3], tile_size=4))
    for array, before in zip(given, values, strict=True):
        assert_close(b.numpy(array), before, idea="an input was written to: `x *= y` changes x itself")


@pytest.mark.task("2.4.5")
def test_flash_attention_takes_the_tiled_path_first(b, rng):
    """`flash_attention` without a path works as soon as Day 4 is solved, with tiles of 128."""
    query, key, value = inputs(rng, 2, 1, 130, 300, D=4, batch=(1,))
    actual = b.numpy(b.flash_attention(*arrays(b, query, key, value), mask="causal"))
    idea = "130 queries and 300 keys in tiles of 128"
    assert_tiled(actual, flash64(query, key, value, mask=causal64(130, 300)), idea)


def peak_of(b, L: int, S: int, mask) -> int:
    """Peak bytes for two heads over one, D = 8, tiles of 64. One table of scores is 8 · L · S bytes."""
    query, key, value = (b.array(np.ones((1, heads, n, 8))) for heads, n in ((2, L), (1, S), (1, S)))
    mask = b.array(np.zeros((1, S))) if mask == "padding" else mask
    return b.peak_bytes(lambda: b.flash_attention_tiled(query, key, value, mask=mask, tile_size=64))


@pytest.mark.task("2.4.5")
@pytest.mark.parametrize("mask", [None, "causal", "padding"])
def test_tiled_attention_does_not_grow_in_memory_with_the_keys(b, mask):
    """64 queries, and 256 or 8,192 keys: the output is the same 4 KiB, so the peak may hardly grow.

    One tile has 2 · 64 · 64 scores, 32 KiB; the scores of 64 queries and 8,192 keys have 4 MiB. (MLX may hand some
    ten operations to its thread ahead of time, each with its memory.)
    """
    few, many = peak_of(b, 64, 256, mask), peak_of(b, 64, 8192, mask)
    assert many < 16 * 32 * 1024, (
        f"{many:,} bytes for 64 queries and 8,192 keys in tiles of 64: only a few tiles of 32,768 may live at once. "
        "Either a tile has all keys, or old tiles are kept, or (in MLX) no tile waits for the one before"
    )
    assert many < few + 12 * 32 * 1024, f"{few:,} bytes for 256 keys, {many:,} for 8,192: 32 times the keys"


@pytest.mark.task("2.4.5")
@pytest.mark.parametrize("mask", [None, "causal", "padding"])
def test_tiled_attention_grows_in_memory_as_its_output(b, mask):
    """256 or 1,024 queries over 1,024 keys: what grows is the output, 16 KiB to 64 KiB, not the tiles."""
    few, many = peak_of(b, 256, 1024, mask), peak_of(b, 1024, 1024, mask)
    assert many - few < 10 * 48 * 1024, (
        f"{few:,} bytes for 256 queries and {many:,} for 1,024: the output grew by 49,152, the rest of the growth is "
        "tiles that were kept. (In MLX: the next tile of queries must wait for the one before)"
    )


@pytest.mark.task("2.4.5")
@pytest.mark.parametrize("mask", [None, "padding"])
def test_tiled_attention_holds_few_tiles_beside_many_queries(b, mask):
    """4,096 queries are 64 tiles of queries: beside the output, 256 KiB, and its parts only a few tiles may live.

    All queries at once, over tiles of keys, would hold 2 · 4,096 · 64 scores, 2 MiB.
    """
    output, tile = 2 * 4096 * 8 * 4, 32 * 1024
    peak = peak_of(b, 4096, 256, mask)
    assert peak < 2 * output + 16 * tile, (
        f"{peak:,} bytes for 4,096 queries in tiles of 64: the output and the parts that it is joined from have "
        f"{2 * output:,}, a tile of scores {tile:,}: take a tile of queries at a time, and finish it before the next"
    )


@pytest.mark.task("2.4.5")
def test_tiled_attention_repeats_no_head_in_memory(b):
    """One query token over 512 keys, 16 heads over 2, in one tile: less memory than one copy of K."""
    query = b.array(np.ones((1, 16, 1, 128)))
    key, value = (b.array(np.ones((1, 2, 512, 128))) for _ in range(2))
    peak = b.peak_bytes(lambda: b.flash_attention_tiled(query, key, value, tile_size=512))
    bytes_of_key = 2 * 512 * 128 * 4
    assert peak < bytes_of_key, (
        f"{peak:,} bytes beside the inputs, and K has {bytes_of_key:,}: a head of K or V was copied"
    )
