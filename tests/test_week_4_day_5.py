"""Week 4 Day 5: keys and values in eight bits, and blocks that wait outside the pool.

Oracles: NumPy in float64; a dictionary of places that makes each copy; each request's answer alone; all choices tried.
"""

from collections import OrderedDict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.close import assert_close
from support.cold import Copies, FakeFolder, Kept
from support.masks import assert_no_loop
from support.packed import PackedServing
from support.steps import steps_of
from tiny_llm_course.grading.small_models import random_checkpoint, small_model
from tiny_llm_extensions.cold_blocks.moves import GONE, POOL, BlockCosts, Move, Place
from tiny_llm_extensions.cold_blocks.returns import ColdParts
from tiny_llm_extensions.given import given_of
from tiny_llm_extensions.make_loop import make_loop

QWEN = small_model(
    53, num_attention_heads=4, num_key_value_heads=2, head_dim=6, vocab_size=61, max_position_embeddings=400
)
FAST, SLOW, SLOWEST = "memory", "folder", "tape"


# A row in eight bits.


def rows_of(b, x, largest=127, dtype=None):
    """`quantize_rows` of a NumPy array, as NumPy arrays; and what the row was, rounded to the type that it had."""
    given_rows = b.array(x, dtype)
    codes, scales = b.quantize_rows(given_rows) if largest == 127 else b.quantize_rows(given_rows, largest)
    assert codes.dtype == b.array(np.zeros(1, np.int8)).dtype, f"codes are int8, not {codes.dtype}"
    assert scales.dtype == b.dtype("bfloat16"), f"scales are bf16, not {scales.dtype}"
    return b.numpy(codes).astype(np.int64), b.numpy(scales).astype(np.float64), b.numpy(given_rows)


def check_rows(x, codes, scales, largest):
    """Each number is the nearest multiple of its row's scale; the farthest number gives the scale."""
    farthest = np.abs(x.astype(np.float64)).max(axis=-1)
    assert codes.shape == x.shape and scales.shape == x.shape[:-1], (
        f"codes {codes.shape}, scales {scales.shape}"
    )
    assert np.abs(codes).max(initial=0) <= largest, (
        f"codes from {codes.min()} to {codes.max()}: from {-largest} to {largest}, so that a number and its opposite "
        "are kept alike"
    )
    assert_close(
        scales * largest,
        farthest,
        atol=0,
        rtol=2**-8 * 1.001,
        idea=f"a scale is the number of its row that is farthest from 0, divided by {largest}, in bf16",
    )
    errors = np.abs(codes * scales[..., None] - x)
    worst = np.max(errors / np.where(scales > 0, scales, 1)[..., None], initial=0)
    # A scale in bf16 may be 1/256 too small: then the farthest number is 127.5 scales away.
    assert worst <= 0.502, (
        f"an error of {worst:.3f} scales: round to the nearest multiple of the scale that is kept"
    )


@pytest.mark.task("4.5.1")
@pytest.mark.parametrize("largest", [127, 7])
@pytest.mark.parametrize("shape", [(64,), (9, 16), (50, 3, 64)])
def test_a_row_is_codes_and_a_scale(b, rng, shape, largest):
    """A scale for each row, however many axes there are; no number is farther away than half a scale."""
    x = rng.normal(size=shape).astype(np.float32)
    codes, scales, x = rows_of(b, x, largest)
    check_rows(x, codes, scales, largest)
    assert (np.abs(codes).max(axis=-1) == largest).all(), (
        f"the farthest number of a row has the code {largest}"
    )


@pytest.mark.task("4.5.1")
def test_the_farthest_number_may_be_negative(b):
    """The distance from 0 counts, on both sides."""
    codes, scales, _ = rows_of(b, np.float32([[-254, 127, 2, 0], [1, -1, 0.5, -0.25]]))
    assert codes.tolist() == [[-127, 64, 1, 0], [127, -127, 64, -32]], f"{codes.tolist()}"
    assert scales[0] == 2, f"254 is 127 times 2, not {scales[0]}"


@pytest.mark.task("4.5.1")
def test_rows_do_not_depend_on_each_other(b, rng):
    """A row of large numbers, one of small ones and one of zeros; each has its own scale."""
    x = rng.normal(size=(4, 2, 16)).astype(np.float32) * np.float32([[[1e20]], [[1e-20]], [[0]], [[1]]])
    x[3, 1] = 0
    codes, scales, x = rows_of(b, x)
    assert np.isfinite(scales).all(), (
        f"a scale is {scales[~np.isfinite(scales)][:1]}: a row of zeros has scale 0"
    )
    assert not codes[2].any() and not scales[2].any(), "a row of zeros has codes and scale 0"
    assert not codes[3, 1].any() and scales[3, 1] == 0 and scales[3, 0] > 0
    check_rows(x, codes, scales, 127)


@pytest.mark.task("4.5.1")
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_rows_of_short_types_are_rounded_once(b, rng, dtype):
    """In bf16 100.3 is 100.5: divide in float32, or a number is rounded twice."""
    codes, scales, x = rows_of(b, rng.normal(size=(200, 32)), dtype=dtype)
    check_rows(x, codes, scales, 127)


@pytest.mark.task("4.5.1")
@settings(max_examples=40)
@given(scale=st.floats(2.0**-60, 2.0**60), seed=st.integers(0, 10**6))
def test_rows_of_any_size(b, scale, seed):
    """Codes are made for the scale that is kept, which bf16 has rounded up or down."""
    x = (np.random.default_rng(seed).normal(size=(6, 24)) * scale).astype(np.float32)
    codes, scales, x = rows_of(b, x)
    check_rows(x, codes, scales, 127)


@pytest.mark.task("4.5.1")
def test_a_pool_keeps_rows_as_codes_and_scales(b, rng):
    """The engine's pool rounds with your function: what it gives back is what was written, but for the rounding."""
    model = b.Qwen3ModelWeek2(random_checkpoint(b, QWEN), attention="simple")
    pool = b.create_kv_pools(model, 3, 4, kv_cache_dtype="int8")[0]
    key, value = rng.normal(size=(2, 5, 2, 6)).astype(np.float32)
    kept = [b.numpy(part) for part in pool.write(b.array([7, 0, 9, 4, 2]), b.array(key), b.array(value))]
    for part, found in zip((key, value), kept, strict=True):
        codes, scales, _ = rows_of(b, part)
        assert_close(
            found, codes * scales[..., None], idea="a pool in int8 keeps `quantize_rows` of what is written"
        )


# Attention over codes and scales.


def kept_pool(b, rng, slots, heads, D):
    """Random codes and scales of a pool, for keys and for values, in NumPy and on the port."""
    plain = []
    for _ in range(2):
        codes = rng.integers(-127, 128, (slots, heads, D)).astype(np.int8)
        scales = b.numpy(b.array(rng.uniform(0.001, 0.03, (slots, heads)), "bfloat16"))
        plain.append((codes, scales.astype(np.float64)))
    return plain, [(b.array(codes), b.array(scales, "bfloat16")) for codes, scales in plain]


def attention_of(query, keys, values, slots, scale):
    """Attention over dequantised keys and values, in float64."""
    (K, V) = (codes[slots].astype(np.float64) * scales[slots][..., None] for codes, scales in (keys, values))
    repeats = query.shape[0] // K.shape[1]
    scores = np.einsum("hd,shd->hs", query.astype(np.float64), K.repeat(repeats, axis=1)) * scale
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return np.einsum("hs,shd->hd", weights, V.repeat(repeats, axis=1))


@pytest.mark.task("4.5.2")
@pytest.mark.parametrize(
    ("H", "Hkv", "D", "S", "scale", "dtype"),
    [
        (4, 4, 8, 9, None, "float32"),
        (6, 2, 16, 33, None, "float32"),
        (3, 1, 10, 5, 0.3, "float32"),
        (2, 1, 8, 7, 0.0, "float32"),
        (8, 2, 64, 1, 0.01, "float32"),
        (4, 2, 32, 40, None, "bfloat16"),  # has 8 bits, and so has a code: scores and sums in it lose digits
    ],
)
def test_attention_over_codes_is_that_over_their_numbers(b, rng, H, Hkv, D, S, scale, dtype):
    """Grouped heads, slots in any order, and a pool that holds more than this request."""
    plain, kept = kept_pool(b, rng, 50, Hkv, D)
    query, slots = b.array(rng.normal(size=(H, D)), dtype), rng.permutation(50)[:S]
    scales = () if scale is None else (scale,)
    found = b.attend_quantized(query, *kept, b.array(slots), *scales)
    assert found.dtype == b.dtype("float32"), f"the result is float32, not {found.dtype}"
    assert_close(
        b.numpy(found),
        attention_of(b.numpy(query), *plain, slots, D**-0.5 if scale is None else scale),
        idea="a key's scale multiplies its score, a value's scale its weight after the softmax; all in float32"
        if scale != 0
        else "the given scale, 0.0, must replace 1/√D; only None asks for the default",
    )


@pytest.mark.task("4.5.2")
def test_attention_over_codes_reads_its_own_slots(b, rng):
    """Other slots belong to other requests, and may hold anything."""
    (keys, values), _ = kept_pool(b, rng, 30, 2, 8)
    slots, other = np.array([17, 3, 4, 29]), np.setdiff1d(np.arange(30), [17, 3, 4, 29])
    query = rng.normal(size=(4, 8)).astype(np.float32)
    expected = attention_of(query, keys, values, slots, 8**-0.5)
    for _, scales in (keys, values):
        scales[other] = np.nan
    kept = [(b.array(codes), b.array(scales, "bfloat16")) for codes, scales in (keys, values)]
    found = b.numpy(b.attend_quantized(b.array(query), *kept, b.array(slots)))
    assert_close(found, expected, idea="a slot of another request reached this one: take the slots first")


@pytest.mark.task("4.5.2")
@pytest.mark.parametrize("which", [0, 1], ids=["keys", "values"])
def test_no_dequantised_copy_is_made(b, rng, which):
    """127 · 3e36 is too large for float32, so numbers that are made again are inf; scores and weights are not."""
    plain, _ = kept_pool(b, rng, 64, 1, 8)
    query = rng.normal(size=(2, 8)).astype(np.float32)
    codes, scales = plain[which]
    codes[:] = rng.integers(-3, 4, codes.shape)
    codes[5, 0, 3], scales[:] = 127, float(b.numpy(b.array([3e36], "bfloat16"))[0])
    if which == 0:
        query = query * np.float32(1e-36)
        query[:, 3] = 0
    kept = [(b.array(part), b.array(by, "bfloat16")) for part, by in plain]
    found = b.numpy(b.attend_quantized(b.array(query), *kept, b.array(np.arange(64))))
    expected = attention_of(query, *plain, np.arange(64), 8**-0.5)
    name = ("keys", "values")[which]
    size = np.abs(expected).max()
    assert_close(
        found / size,
        expected / size,
        atol=1e-3,
        idea=f"{name} were dequantised: multiply S scores or weights",
    )


@pytest.mark.task("4.5.2")
def test_attention_over_codes_has_no_loop(b, rng):
    """The number of tokens is a shape."""

    def attend(size):
        _, kept = kept_pool(b, rng, size, 1, 8)
        return b.attend_quantized(b.array(np.ones((2, 8), np.float32)), *kept, b.array(np.arange(size)))

    assert_no_loop(attend, "attention over codes")


# What rounding costs.


def error_of(b, x, axis, largest=127):
    """The relative error by the oracle, in float64; the scales are bf16."""
    rows = np.moveaxis(x.astype(np.float64), axis, -1)
    scales = b.numpy(b.array(np.abs(rows).max(axis=-1) / largest, "bfloat16")).astype(np.float64)[..., None]
    rounded = np.clip(np.round(rows / np.where(scales > 0, scales, 1)), -largest, largest) * scales
    return np.linalg.norm(rounded - rows) / np.linalg.norm(rows)


@pytest.mark.task("4.5.3")
@pytest.mark.parametrize("largest", [127, 7])
@pytest.mark.parametrize("axis", [-1, 0])
def test_rounding_error_is_that_of_the_oracle(b, rng, axis, largest):
    """Per token or per channel, in 8 bits or in 4; rows and channels of very different sizes."""
    x = (
        rng.normal(size=(40, 3, 16)) * rng.uniform(0.1, 9, (40, 1, 1)) * rng.uniform(0.1, 5, (1, 3, 16))
    ).astype(np.float32)
    found = b.rounding_error(b.array(x), axis, largest)
    assert isinstance(found, float), f"a number of Python, not {type(found).__name__}"
    expected = error_of(b, x, axis, largest)
    assert found == pytest.approx(expected, rel=1e-2), (
        f"axis {axis}, codes up to {largest}: {found:.5f}, not {expected:.5f}: the norm of all errors divided by the "
        "norm of all numbers"
    )


@pytest.mark.task("4.5.3")
def test_a_large_channel_costs_its_rows_and_not_its_column(b, rng):
    """One channel is 40 times as large: with a scale per token the others lose digits, with one per channel none."""
    x = rng.normal(size=(64, 2, 16)).astype(np.float32)
    x[:, :, 5] *= 40
    x /= np.sqrt(np.mean(x**2))
    per_token, per_channel = (b.rounding_error(b.array(x), axis) for axis in (-1, 0))
    assert per_channel < 0.01, f"per channel: {per_channel:.4f}"
    plain = b.rounding_error(b.array(np.delete(x, 5, axis=2)), -1)
    assert plain < 0.01, f"without that channel, per token: {plain:.4f}"
    large_token = x.copy().transpose(2, 1, 0)
    assert b.rounding_error(b.array(large_token), 0) == pytest.approx(per_token, rel=1e-3), (
        "a token that is 40 times as large does to channels what a large channel does to tokens"
    )


@pytest.mark.task("4.5.3")
def test_what_is_a_multiple_of_its_scale_costs_nothing(b):
    """Whole numbers up to 127; and the size of all numbers together does not matter."""
    x = np.tile(np.arange(-127, 128, dtype=np.float32), (4, 1)).reshape(4, 1, 255)
    assert b.rounding_error(b.array(x), -1) == 0
    assert b.rounding_error(b.array(x), 0) < 2**-8, "four equal tokens: only the scales are rounded"
    y = np.random.default_rng(3).normal(size=(9, 2, 8)).astype(np.float32)
    assert b.rounding_error(b.array(y), -1) == pytest.approx(b.rounding_error(b.array(64 * y), -1), rel=1e-6)


@pytest.mark.task("4.5.3")
def test_rounding_error_of_keys_in_bf16(b, rng):
    """The error is that of rounding alone, in float32: bf16 would add its own."""
    x = b.array(rng.normal(size=(30, 2, 16)), "bfloat16")
    found = b.rounding_error(x, -1)
    assert found == pytest.approx(error_of(b, b.numpy(x), -1), rel=1e-2), f"{found:.5f}"


# Which block goes where.


def levels_of(s, *levels):
    """`ColdBlocks` with levels of (name, capacity)."""
    return s.ColdBlocks([s.Level(*level) for level in levels])


def pool(block):
    """A place in the pool."""
    return Place(POOL, block)


def texts(cold):
    """The texts of each level, the oldest first."""
    return [list(level.slots) for level in cold.levels]


@pytest.mark.task("4.5.4")
def test_a_text_goes_to_the_first_level(s):
    """While there is room, one copy each, into a slot of its own."""
    cold = levels_of(s, (FAST, 2), (SLOW, 2))
    cold.put_away("a", pool(7))
    cold.put_away("b", pool(3))
    assert [(move.digest, move.source, move.target.level) for move in cold.moves] == [
        ("a", pool(7), FAST),
        ("b", pool(3), FAST),
    ], f"{cold.moves}"
    assert {move.target.slot for move in cold.moves} == {0, 1}, "each text has a slot of its own"
    assert texts(cold) == [["a", "b"], []]


@pytest.mark.task("4.5.4")
def test_the_oldest_text_makes_room_before_the_new_one_is_written(s):
    """Its copy comes first, because the new text is written where it was."""
    cold = levels_of(s, (FAST, 1), (SLOW, 1))
    cold.put_away("a", pool(7))
    cold.take_moves()
    cold.put_away("b", pool(3))
    memory, folder = Place(FAST, 0), Place(SLOW, 0)
    expected = [Move("a", memory, folder), Move("b", pool(3), memory)]
    assert cold.moves == expected, f"{cold.moves}, not {expected}: first out, then in"
    cold.take_moves()
    cold.put_away("c", pool(1))
    expected = [Move("a", folder, GONE), Move("b", memory, folder), Move("c", pool(1), memory)]
    assert cold.moves == expected, f"{cold.moves}, not {expected}: the last level has no next one"


@pytest.mark.task("4.5.4")
def test_what_a_level_holds_is_not_copied_again(s):
    """It becomes the most recently used text: the next one to go is another."""
    cold = levels_of(s, (FAST, 2))
    for text, block in ("a", 7), ("b", 3), ("a", 5):
        cold.put_away(text, pool(block))
    assert len(cold.moves) == 2, f"{cold.moves}: the level holds a already"
    assert texts(cold) == [["b", "a"]], "a was used after b"
    cold.put_away("c", pool(1))
    assert texts(cold) == [["a", "c"]], "b is the least recently used one"


@pytest.mark.task("4.5.4")
def test_a_slower_level_may_hold_it_already(s):
    """Then it comes into the first level as well, and is not copied down a second time."""
    cold = levels_of(s, (FAST, 1), (SLOW, 3))
    for text in "abac":
        cold.put_away(text, pool(ord(text)))
    down = [move.digest for move in cold.moves if move.target.level == SLOW]
    assert down == ["a", "b"], f"copies to the second level: {down}"
    assert texts(cold) == [["c"], ["b", "a"]], f"{texts(cold)}: a was used after b"


@pytest.mark.task("4.5.4")
def test_nothing_is_kept_without_a_level(s):
    """Levels without room are left out: what is put away is gone, and the engine is told."""
    cold = levels_of(s, (FAST, 0), (SLOW, 0))
    cold.put_away("a", pool(4))
    assert cold.moves == [Move("a", pool(4), GONE)], f"{cold.moves}"
    small = levels_of(s, (FAST, 0), (SLOW, 1))
    small.put_away("a", pool(4))
    assert small.moves == [Move("a", pool(4), Place(SLOW, 0))], f"{small.moves}"


@pytest.mark.task("4.5.4")
def test_a_text_may_begin_further_down(s):
    """`first` is the index of the first level that may keep it: no level before it is asked."""
    cold = levels_of(s, (FAST, 2), (SLOW, 1))
    cold.put_away("a", Place(FAST, 0), 1)
    assert (texts(cold), cold.moves) == ([[], ["a"]], [Move("a", Place(FAST, 0), Place(SLOW, 0))])
    cold.put_away("b", Place(FAST, 1), 2)
    assert cold.moves[1:] == [Move("b", Place(FAST, 1), GONE)], f"{cold.moves}"


class KeptTexts:
    """What each level should hold: texts by last use, each level's overflow in the next one."""

    def __init__(self, capacities):
        self.capacities = capacities
        self.levels = [OrderedDict() for _ in capacities]
        self.gone = 0

    def put_away(self, text, first=0):
        if first == len(self.levels):
            self.gone += 1
            return
        level = self.levels[first]
        is_new = text not in level
        level[text] = None
        level.move_to_end(text)
        if is_new and len(level) > self.capacities[first]:
            self.put_away(level.popitem(last=False)[0], first + 1)

    def touch(self, text):
        next(level for level in self.levels if text in level).move_to_end(text)

    def forget(self, text):
        for level in self.levels:
            level.pop(text, None)

    def check(self, cold, copies):
        """The texts are where they should be, in their order, and each of them is in the slot that says so."""
        assert texts(cold) == [list(level) for level in self.levels], f"{texts(cold)}"
        for level in cold.levels:
            slots = [*level.slots.values()]
            assert sorted(slots + level.free) == list(range(level.capacity)), (
                f"{level.name}: slots {slots} in use, {level.free} free: each slot is one or the other"
            )
            for text, slot in level.slots.items():
                found = copies.held.get(Place(level.name, slot))
                assert found == text, f"{level.name} {slot} holds {found}, not {text}"


CAPACITIES = st.lists(st.integers(1, 4), min_size=1, max_size=3)


@pytest.mark.task("4.5.4")
@settings(max_examples=80)
@given(capacities=CAPACITIES, used=st.lists(st.integers(0, 9), max_size=40), every=st.integers(1, 7))
def test_each_level_keeps_the_texts_that_were_used_last(s, capacities, used, every):
    """Random texts; their copies are made now and then, in the order in which they were planned."""
    cold = levels_of(s, *zip((FAST, SLOW, SLOWEST), capacities, strict=False))
    expected, copies = KeptTexts(capacities), Copies()
    for number, text in enumerate(used):
        copies.held[pool(number)] = text
        cold.put_away(text, pool(number))
        expected.put_away(text)
        if number % every == 0:
            copies.make(cold.take_moves())
    gone = [move for move in cold.moves if move.target == GONE]
    assert len(gone) <= expected.gone, "a text is gone that was kept"
    copies.make(cold.take_moves())
    expected.check(cold, copies)


# Out of the pool, and back.


def idle_cache(s, cold, names):
    """A cache whose blocks, numbered from 0, hold these texts; the first one is the oldest."""
    cache = s.KeepingCache(cold)
    for block, name in enumerate(names):
        cache.add(name, block)
        cache.mark_idle(block)
    return cache


@pytest.mark.task("4.5.5")
def test_an_evicted_text_is_put_away(s):
    """The oldest idle block, with its text; after that the cache does not know either."""
    cold = levels_of(s, (FAST, 2), (SLOW, 2))
    cache = idle_cache(s, cold, "abc")
    cache.mark_used(0)
    assert cache.evict() == 1, "block 0 is used, so block 1 is the oldest idle one"
    assert cold.moves == [Move("b", pool(1), Place(FAST, 0))], f"{cold.moves}"
    assert (cache.find("b"), cache.holds(1), list(cache.idle)) == (None, False, [2])
    assert (cache.find("a"), cache.find("c")) == (0, 2), "the other texts stay"


@pytest.mark.task("4.5.5")
def test_a_text_that_a_level_holds_is_evicted_without_a_copy(s):
    """It came from there. It is the most recently used one now."""
    cold = levels_of(s, (FAST, 2))
    for text in "ab":
        cold.put_away(text, pool(9))
    cold.take_moves()
    assert idle_cache(s, cold, "a").evict() == 0
    assert cold.moves == [] and texts(cold) == [["b", "a"]], f"{cold.moves}, {texts(cold)}"


@pytest.mark.task("4.5.5")
def test_a_text_comes_back_from_the_fastest_level(s):
    """It stays where it was, and was used just now."""
    cold = levels_of(s, (FAST, 2), (SLOW, 3))
    for text in "abcda":  # memory has d and a, the folder a, b and c
        cold.put_away(text, pool(9))
    before = texts(cold)
    assert before == [["d", "a"], ["a", "b", "c"]], f"{before}"
    cold.take_moves()
    cold.bring_back("d", 4)
    cold.bring_back("b", 5)
    cold.bring_back("a", 6)
    assert texts(cold) == [["d", "a"], ["a", "c", "b"]], f"{texts(cold)}: they stay, and were used just now"
    expected = [Place(FAST, cold.levels[0].slots["d"]), Place(SLOW, cold.levels[1].slots["b"])]
    assert [move.source for move in cold.moves[:2]] == expected, f"{cold.moves}"
    assert cold.moves[2].source.level == FAST, "a is in memory and in the folder, and memory is faster"
    assert [move.target for move in cold.moves] == [pool(4), pool(5), pool(6)], f"{cold.moves}"


@pytest.mark.task("4.5.5")
def test_what_came_back_is_not_the_next_to_go(s):
    """Its copy was planned, and not made yet: a text that takes its slot would be what comes back."""
    cold = levels_of(s, (FAST, 2))
    copies = Copies()
    copies.held = {pool(0): "a", pool(1): "b", pool(2): "c"}
    for text, block in ("a", 0), ("b", 1):
        cold.put_away(text, pool(block))
    cold.bring_back("a", 5)
    cold.put_away("c", pool(2))
    copies.make(cold.take_moves())
    assert copies.held.get(pool(5)) == "a", f"block 5 holds {copies.held.get(pool(5))}, and a should be back"
    assert texts(cold) == [["a", "c"]], f"{texts(cold)}: a came back, so b is the oldest"


@pytest.mark.task("4.5.5")
def test_a_text_that_cannot_be_read_is_forgotten(s):
    """In every level; its slots are free, and it is copied again when it is computed again. Others stay."""
    cold = levels_of(s, (FAST, 1), (SLOW, 2))
    for text in "aba":
        cold.put_away(text, pool(ord(text)))
    planned = [*cold.moves]
    cold.forget("a")
    moves = cold.take_moves()
    assert moves[: len(planned)] == planned, "what was planned for others is still to be made"
    assert texts(cold) == [[], ["b"]] and cold.level_of("a") is None, f"{texts(cold)}"
    assert [len(level.free) for level in cold.levels] == [1, 1], "the slots of a forgotten text are free"
    gone = [(move.source, move.target) for move in moves[len(planned) :]]
    assert gone == [(Place(FAST, 0), GONE), (Place(SLOW, 0), GONE)], (
        f"{gone}: one move to GONE for each level that held it, the fastest first"
    )
    cold.forget("a")  # does nothing
    cold.put_away("a", pool(3))
    assert cold.moves == [Move("a", pool(3), Place(FAST, 0))], f"{cold.moves}"


OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["put", "back", "forget", "make"]), st.integers(0, 7)), max_size=50
)


@pytest.mark.task("4.5.5")
@settings(max_examples=80)
@given(capacities=CAPACITIES, operations=OPERATIONS)
def test_no_copy_reads_another_text(s, capacities, operations):
    """Texts go, come back and are forgotten in any order, many of them before a copy is made."""
    cold = levels_of(s, *zip((FAST, SLOW, SLOWEST), capacities, strict=False))
    expected, copies = KeptTexts(capacities), Copies()
    for number, (what, text) in enumerate(operations):
        if what == "put":
            copies.held[pool(number)] = text
            cold.put_away(text, pool(number))
            expected.put_away(text)
        elif what == "back" and cold.level_of(text) is not None:
            cold.bring_back(text, 1000 + number)
            expected.touch(text)
        elif what == "forget":
            cold.forget(text)
            expected.forget(text)
        elif what == "make":
            copies.make(cold.take_moves())
    copies.make(cold.take_moves())
    expected.check(cold, copies)


TURNS = "abcdefghijklmnopq", "ABCDEFGHIJKLMNOPQ", "0123456789+-*/=<>"


@pytest.mark.task("4.5.5", after="4.5.6")
@pytest.mark.parametrize("levels", [{FAST: 8}, {SLOW: 8}, {FAST: 3, SLOW: 8}, {FAST: 2, "tape": 3, SLOW: 4}])
def test_a_conversation_comes_back(s, levels):
    """A pool for one conversation, and three of them in turn: only the last block of a text is computed again."""
    engine = Kept(s, levels, num_blocks=6)
    first = [engine.ask(text) for text in TURNS]
    computed = engine.computed
    second = [engine.ask(text) for text in TURNS]
    engine.check_answers()
    assert [made.tokens for made in first] == [made.tokens for made in second]
    back = sum(move.target.level == POOL for move in engine.model.copies)
    if sum(levels.values()) >= 12:
        assert back == 12, f"{back} blocks came back: 4 of each conversation"
    rows = engine.computed - computed
    assert rows == 3 * 20 - 4 * back, f"{rows} rows computed for 3 texts, of which {back} blocks came back"


LOADS = st.lists(
    st.tuples(st.integers(0, 4), st.integers(2, 19), st.integers(1, 8), st.integers(0, 25), st.booleans()),
    min_size=1,
    max_size=9,
)


@pytest.mark.task("4.5.5", after="4.5.6")
@settings(max_examples=60)
@given(
    loads=LOADS,
    levels=st.lists(st.integers(0, 6), min_size=3, max_size=3),
    blocks=st.integers(7, 14),
    budget=st.integers(8, 20),
    damaged=st.sampled_from([0, 60]),
)
def test_random_conversations_have_the_answers_that_they_have_alone(
    s, loads, levels, blocks, budget, damaged
):
    """Shared beginnings, several at a time, preemptions, aborts, damaged files; blocks move through three levels."""
    kept = dict(zip((FAST, SLOWEST, SLOW), levels, strict=True))
    engine = Kept(s, kept, num_blocks=blocks, max_num_batched_tokens=budget, damaged=damaged)
    ended = []
    for number in range(400):
        for text, size, max_tokens, arrival, aborts in loads:
            if arrival == number:
                made = engine.add((chr(ord("A") + text) * 7 + "xyzuvwabcdefg")[:size], max_tokens=max_tokens)
                ended += [(made, number + 2)] * aborts
        for made, end in ended:
            if end == number:
                made.abort()
        if number > 25 and not engine.loop.has_work_remaining():
            break
        engine.loop.step()
    engine.sequences = [made for made in engine.sequences if made.finish_reason != "abort"]
    engine.check_answers()


# Swap or compute again.


@pytest.mark.task("4.5.6")
@pytest.mark.parametrize(
    ("levels", "compute", "back", "expected"),
    [
        ([FAST] * 4, 3.0, {FAST: 1.0}, 4),
        ([FAST] * 4, 1.0, {FAST: 3.0}, 0),
        ([], 1.0, {FAST: 3.0}, 0),
        ([FAST, FAST, SLOW, SLOW], 3.0, {FAST: 1.0, SLOW: 5.0}, 2),
        (
            [SLOW, FAST, FAST],
            3.0,
            {FAST: 1.0, SLOW: 5.0},
            3,
        ),  # -2 + 2 + 2: the slow one opens the way to the others
        ([SLOW, FAST], 3.0, {FAST: 1.5, SLOW: 5.0}, 0),
        ([FAST, SLOW, FAST, FAST, SLOW], 3.0, {FAST: 1.0, SLOW: 6.0}, 4),
        ([FAST, SLOW, SLOW], None, {SLOW: 99.0}, 3),  # nothing was measured: all of them are tried
        ([FAST, FAST], 1.0, {}, 2),
        ([SLOW, FAST, SLOW], 1.0, {SLOW: 1.5}, 2),  # a copy without a time costs nothing
        ([FAST, SLOW, FAST], 3.0, {FAST: 1.0, SLOW: 6.0}, 1),
        ([FAST] * 3, 2.0, {FAST: 2.0}, 3),  # equal: the device is free for others
        ([FAST, SLOW], 2.0, {FAST: 1.0, SLOW: 2.0}, 2),
    ],
)
def test_the_cheapest_number_of_blocks_comes_back(s, levels, compute, back, expected):
    """The sum of copies at the front and of computing the rest is the lowest that there is."""
    found = s.blocks_to_bring_back(levels, BlockCosts(compute, back))
    assert found == expected, (
        f"{levels}: computing {compute} s, copying {back}: {expected} blocks, not {found}"
    )


@pytest.mark.task("4.5.6")
@settings(max_examples=150)
@given(
    levels=st.lists(st.sampled_from([FAST, SLOW, SLOWEST]), max_size=9),
    compute=st.integers(0, 6),
    back=st.fixed_dictionaries({name: st.integers(0, 9) for name in (FAST, SLOW, SLOWEST)}),
)
def test_no_other_number_is_cheaper(s, levels, compute, back):
    """All of them tried."""
    count = len(levels)

    def seconds(k):
        return sum(back[level] for level in levels[:k]) + (count - k) * compute

    found = s.blocks_to_bring_back(levels, BlockCosts(float(compute), {k: float(v) for k, v in back.items()}))
    best = min(range(count + 1), key=lambda k: (seconds(k), -k))
    assert found == best, (
        f"{levels}, {back}, computing {compute}: {found} cost {seconds(found)}, {best} {seconds(best)}"
    )


@pytest.mark.task("4.5.6")
@pytest.mark.parametrize(("seconds", "back"), [(0.5, 12), (2.0, 0)])
def test_a_scheduler_brings_back_what_is_cheaper(s, seconds, back):
    """Three conversations in turn: where a copy takes longer than computing, they are computed again."""
    engine = Kept(s, {FAST: 16}, num_blocks=6, costs=BlockCosts(1.0, {FAST: seconds}))
    for text in TURNS * 2:
        engine.ask(text)
    found = sum(move.target.level == POOL for move in engine.model.copies)
    assert found == back, f"{found} copies of {seconds} s came back; a block is computed in 1 s"
    engine.check_answers()


@pytest.mark.task("4.5.6")
@pytest.mark.parametrize("kind", ["auto", "int8"])
def test_a_model_answers_as_if_nothing_had_left_its_pool(b, s, rng, kind):
    """A small random model, with copies of the very bytes to the host's memory, and back."""
    model = b.Qwen3ModelWeek3(random_checkpoint(b, QWEN))
    prompts = rng.integers(0, 61, size=(3, 18)).tolist()

    def answers(num_blocks, rows):
        serving = PackedServing(b, s, model, num_blocks=num_blocks, caching=True, kv_cache_dtype=kind)
        pages, made_moves = given_of(b).host_pages(serving.runner.pools, rows), []
        cold, options = s.ColdBlocks([s.Level(FAST, rows)]), {}

        def make(moves):
            made_moves.extend(moves)
            for move in moves:
                if move.target.level == POOL:
                    pages.restore(move.source.slot, move.target.slot)
                elif move.target != GONE:
                    pages.save(move.source.slot, move.target.slot)

        if rows:
            serving.allocator.prefix_cache = s.KeepingCache(cold)
            serving.runner.before.append(lambda batch: make(batch.moves))
            options["cold"] = ColdParts(cold, FakeFolder(), BlockCosts(None, {}), s.blocks_to_bring_back)
        loop = make_loop(
            s,
            "hybrid",
            serving.runner,
            serving.allocator,
            max_num_batched_tokens=12,
            max_num_seqs=2,
            **options,
        )
        found = []
        for number, prompt in enumerate(prompts * 3):
            made = serving.new_sequence(prompt, number, max_tokens=6)
            loop.add(made)
            for _ in steps_of(loop, [made]):
                loop.step()
            found.append(made.tokens)
        return found, sum(move.target.level == POOL for move in made_moves)

    expected, _ = answers(60, 0)
    found, back = answers(8, 20)
    assert back >= 12, f"{back} blocks came back"
    assert found == expected, "a block that came back is not the one that was put away"
