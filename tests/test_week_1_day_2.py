"""Week 1 Day 2: RoPE. Oracle: NumPy in float64, where turning a pair is multiplying a complex number."""

import numpy as np
import pytest

from support.close import assert_close
from support.masks import FAR_STARTS, assert_traces

PAIRINGS = [False, True]


def angles64(positions, dims: int, base: float = 10000) -> np.ndarray:
    """(..., dims/2): position · base^(-2i/dims)."""
    return np.asarray(positions)[..., None] * np.float64(base) ** (-np.arange(0, dims, 2) / dims)


def rope64(x, positions, base: float = 10000, traditional: bool = False) -> np.ndarray:
    """x is (B, L, H, D), positions (L,) or (B, L)."""
    half = x.shape[-1] // 2
    a, b = (x[..., ::2], x[..., 1::2]) if traditional else (x[..., :half], x[..., half:])
    turned = (a + 1j * b) * np.exp(1j * angles64(positions, x.shape[-1], base))[..., None, :]
    if traditional:
        return np.stack([turned.real, turned.imag], axis=-1).reshape(x.shape)
    return np.concatenate([turned.real, turned.imag], axis=-1)


def positions_of(b, rope, offset, B, L) -> np.ndarray:
    """What `rope.positions` says, as (B, L)."""
    positions = b.numpy(rope.positions(offset, B, L))
    assert positions.dtype.kind in "iu", f"positions must be integers, not {positions.dtype}: they pick rows"
    return np.broadcast_to(positions, (B, L))


@pytest.mark.task("1.2.1")
@pytest.mark.parametrize(("dims", "seq_len", "base"), [(2, 5, 10000), (6, 37, 10000), (64, 101, 1000000)])
def test_tables_equal_numpy(b, dims, seq_len, base):
    """Row p, column i of the tables is cos and sin of p · base^(-2i/dims)."""
    rope = b.RoPE(dims, seq_len, base)
    angles = angles64(np.arange(seq_len), dims, base)
    idea = "pair i turns by base^(-2i/dims) a position, for i = 0 … dims/2 - 1"
    assert_close(b.numpy(rope.cos), np.cos(angles), atol=1e-4, idea=f"cos: {idea}")
    assert_close(b.numpy(rope.sin), np.sin(angles), atol=1e-4, idea=f"sin: {idea}")


@pytest.mark.task("1.2.1")
def test_tables_start_unturned_and_turn_the_first_pair_by_one_radian(b):
    """Position 0 turns nothing; the first pair turns by 1 radian a position, whatever the base."""
    rope = b.RoPE(8, 4, base=500)
    assert_close(b.numpy(rope.cos)[0], np.ones(4), idea="position 0 must not turn anything: cos 0 = 1")
    assert_close(b.numpy(rope.sin)[0], np.zeros(4), idea="position 0 must not turn anything: sin 0 = 0")
    actual = b.numpy(rope.sin)[:, 0]
    assert_close(actual, np.sin(np.arange(4)), atol=1e-4, idea="pair 0 turns by base^0 = 1 radian a position")


@pytest.mark.task("1.2.1")
def test_tables_are_float32_at_long_positions(b):
    """Angles are exact enough at position 30,000. In bf16 257 is 256, and in float16 2049 is 2048."""
    rope = b.RoPE(16, 30001, 1000000)
    assert rope.cos.dtype == rope.sin.dtype == b.dtype("float32"), "the tables must be float32"
    expected = np.sin(angles64(np.arange(30001), 16, 1000000))
    idea = "far positions have wrong angles: compute positions, frequencies and angles in float32"
    assert_close(b.numpy(rope.sin), expected, atol=0.02, idea=idea)


@pytest.mark.task("1.2.2")
def test_positions_of_no_offset(b):
    """None means 0 … L - 1 in every row."""
    actual = positions_of(b, b.RoPE(4, 9), None, 2, 5)
    assert_close(
        actual, [[0, 1, 2, 3, 4]] * 2, idea="without an offset the tokens are at positions 0 … L - 1"
    )


@pytest.mark.task("1.2.2")
@pytest.mark.parametrize("start", [0, 1, 4])
def test_positions_of_a_slice(b, start):
    """A slice gives the same positions to every row, and may end with the tables."""
    actual = positions_of(b, b.RoPE(4, 9), slice(start, start + 5), 3, 5)
    assert_close(actual, [np.arange(start, start + 5)] * 3, idea="slice(a, b) means the positions a … b - 1")


@pytest.mark.task("1.2.2")
def test_positions_of_one_slice_a_row(b):
    """Row i of the batch takes the i-th slice: requests of a batch are at different places."""
    idea = "a list has a slice for each row: make (B, L) positions of their starts and stops, in its order"
    actual = positions_of(b, b.RoPE(4, 9), [slice(6, 8), slice(0, 2), slice(3, 5)], 3, 2)
    assert_close(actual, [[6, 7], [0, 1], [3, 4]], idea=idea)


@pytest.mark.task("1.2.2")
@pytest.mark.parametrize("positions", [[3, 0, 8], [[3, 0, 8], [5, 5, 1]]])
def test_positions_given_as_an_array_pass_through(b, positions):
    """Integer positions, (L,) or (B, L), in any order, are used as they are."""
    actual = positions_of(b, b.RoPE(4, 9), b.array(positions), 2, 3)
    assert_close(actual, np.broadcast_to(positions, (2, 3)), idea="an array already holds the positions")


@pytest.mark.task("1.2.2")
@pytest.mark.parametrize("start", FAR_STARTS)
@pytest.mark.parametrize("form", ["slice", "list of slices", "array", "array (B, L)"])
def test_positions_far_into_a_text(b, form, start):
    """Positions are integers in each of the forms: float16 has no 2,049, and int16 no 40,000."""
    rope, own = b.RoPE(2, 50_000), np.arange(start, start + 13)
    other = own + 10_000
    offset = {
        "slice": slice(start, start + 13),
        "list of slices": [slice(start, start + 13), slice(start + 10_000, start + 10_013)],
        "array": b.array(own),
        "array (B, L)": b.array(np.stack([own, other])),
    }[form]
    expected = [own, own if form in ("slice", "array") else other]
    assert_close(
        positions_of(b, rope, offset, 2, 13), expected, atol=0, rtol=0, idea=f"{form} from {start} on"
    )


@pytest.mark.task("1.2.2")
@pytest.mark.parametrize("shape", [(3,), (2, 3)])
def test_positions_in_an_array_are_not_read(b, shape):
    """They may be on a device that has not computed them yet: nothing of them is compared, printed or counted."""
    made = assert_traces(
        b,
        lambda positions: b.RoPE(4, 9).positions(positions, 2, 3),
        b.array(np.ones(shape, int)),
        idea="positions in an array are passed on as they are: no int(), no .item(), no `if`",
    )
    assert tuple(made.shape) == shape, f"positions of shape {shape} went in, {tuple(made.shape)} came back"


@pytest.mark.task("1.2.2")
@pytest.mark.parametrize("offset", [slice(2, 6), [slice(0, 3), slice(2, 6)]])
def test_positions_refuse_a_slice_of_another_length(b, offset):
    """A slice of 4 positions for 3 tokens is an error that names both numbers."""
    with pytest.raises(ValueError, match=r"(?=.*\b4\b)(?=.*\b3\b)"):
        b.RoPE(4, 9).positions(offset, 2, 3)


@pytest.mark.task("1.2.2")
@pytest.mark.parametrize("offset", [slice(7, 10), [slice(0, 3), slice(7, 10)]])
def test_positions_refuse_to_leave_the_tables(b, offset):
    """Position 9 of 9 does not exist: an error, where an array library might read some other memory."""
    with pytest.raises(ValueError, match="seq_len"):
        b.RoPE(4, 9).positions(offset, 2, 3)


@pytest.mark.task("1.2.2")
def test_positions_refuse_more_tokens_than_the_tables_have(b):
    """Without an offset, too, L tokens need L positions."""
    with pytest.raises(ValueError, match="seq_len"):
        b.RoPE(4, 9).positions(None, 1, 10)


@pytest.mark.task("1.2.2")
@pytest.mark.parametrize("count", [1, 3])
def test_positions_refuse_a_wrong_number_of_slices(b, count):
    """One slice a row. With one slice or three for two rows somebody would stand at wrong positions: name both."""
    with pytest.raises(ValueError, match=rf"(?=.*\b{count}\b)(?=.*\b2\b)"):
        b.RoPE(4, 9).positions([slice(0, 3)] * count, 2, 3)


@pytest.mark.task("1.2.3")
@pytest.mark.parametrize("traditional", PAIRINGS)
@pytest.mark.parametrize("shape", [(1, 3, 1, 2), (2, 7, 3, 6), (2, 33, 1, 10)])
def test_rope_equals_numpy(b, rng, traditional, shape):
    """Every pair turns by its angle; traditional pairs are (2i, 2i+1), the others (i, i + D/2)."""
    x = rng.normal(size=shape)
    pairs = "(2i, 2i+1)" if traditional else "(i, i + D/2)"
    idea = (
        f"traditional={traditional} turns the pairs {pairs} and puts them back at their places; "
        "cos and sin get an axis for the heads, which turn alike"
    )
    actual = b.numpy(b.RoPE(shape[-1], 40, 1000, traditional)(b.array(x)))
    if np.allclose(actual, rope64(x, np.arange(shape[1]), 1000, not traditional), atol=1e-4):
        idea = (
            f"traditional={traditional} turned the pairs of traditional={not traditional}: it turns {pairs}"
        )
    assert_close(actual, rope64(x, np.arange(shape[1]), 1000, traditional), atol=1e-4, idea=idea)


@pytest.mark.task("1.2.3")
@pytest.mark.parametrize("traditional", PAIRINGS)
def test_rope_turns_anticlockwise(b, traditional):
    """At position 1 the pair (1, 0) becomes (cos 1, sin 1): from the first axis towards the second."""
    x = np.zeros((1, 2, 1, 2))
    x[..., 0] = 1
    actual = b.numpy(b.RoPE(2, 2, traditional=traditional)(b.array(x)))[0, 1, 0]
    assert_close(actual, [np.cos(1), np.sin(1)], atol=1e-4, idea="the pair turns the wrong way round")


@pytest.mark.task("1.2.3")
@pytest.mark.parametrize("traditional", PAIRINGS)
def test_rope_pairings_differ(b, traditional):
    """With only dim 0 set, position 1 moves length into its partner: dim 1, or dim D/2."""
    x = np.zeros((1, 2, 1, 6))
    x[..., 0] = 1
    actual = b.numpy(b.RoPE(6, 2, traditional=traditional)(b.array(x)))[0, 1, 0]
    expected = np.zeros(6)
    expected[0], expected[1 if traditional else 3] = np.cos(1), np.sin(1)
    idea = f"traditional={traditional}: the partner of dim 0 is dim {1 if traditional else 3} of 6"
    assert_close(actual, expected, atol=1e-4, idea=idea)


@pytest.mark.task("1.2.3")
@pytest.mark.parametrize("traditional", PAIRINGS)
def test_rope_keeps_lengths(b, rng, traditional):
    """Turning a pair leaves its length, and so the length of the whole head."""
    x = rng.normal(size=(2, 50, 3, 8))
    actual = b.numpy(b.RoPE(8, 50, traditional=traditional)(b.array(x)))
    lengths = np.linalg.norm(x, axis=-1)
    idea = "a rotation keeps lengths: cos² + sin² = 1"
    assert_close(np.linalg.norm(actual, axis=-1), lengths, atol=1e-4, idea=idea)


@pytest.mark.task("1.2.3")
@pytest.mark.parametrize("traditional", PAIRINGS)
def test_rope_scores_depend_on_the_distance_alone(b, rng, traditional):
    """One query and one key, moved along the text together: q·k stays, whatever the position."""
    query, key = rng.normal(size=(2, 1, 1, 1, 8))
    rope = b.RoPE(8, 200, traditional=traditional)
    starts, distance = np.array([0, 1, 7, 64, 150]), 11
    far = b.numpy(rope(b.array(np.repeat(query, 5, axis=1)), b.array(starts + distance)))
    near = b.numpy(rope(b.array(np.repeat(key, 5, axis=1)), b.array(starts)))
    scores = (far * near).sum(axis=-1).ravel()
    idea = "q·k must depend on the distance of the two tokens alone, not on their place"
    assert_close(scores, np.full(5, scores[0]), atol=1e-3, idea=idea)
    expected = (rope64(query, np.array([distance]), traditional=traditional) * key).sum()
    idea = f"q·k at distance {distance} is wrong, everywhere alike: look at the direction and at the pairs"
    assert_close(scores, np.full(5, expected), atol=1e-3, idea=idea)


@pytest.mark.task("1.2.3")
@pytest.mark.parametrize("start", [1, 5, 36])
def test_rope_with_an_offset_continues_a_long_run(b, rng, start):
    """Tokens start … start+3 alone, at that offset, come out as in one run over the whole text."""
    x = rng.normal(size=(2, 40, 3, 6))
    rope = b.RoPE(6, 40)
    whole = b.numpy(rope(b.array(x)))
    part = b.numpy(rope(b.array(x[:, start : start + 4]), slice(start, start + 4)))
    idea = f"token k of a part that starts at {start} is at position {start} + k"
    assert_close(part, whole[:, start : start + 4], idea=idea)
    assert_close(part, rope64(x, np.arange(40))[:, start : start + 4], atol=1e-4, idea=idea)


@pytest.mark.task("1.2.3")
@pytest.mark.parametrize("traditional", PAIRINGS)
def test_rope_turns_each_row_to_its_own_positions(b, rng, traditional):
    """A list of slices and the same positions as a (B, L) array give each row its own angles."""
    x = rng.normal(size=(3, 2, 2, 6))
    rope = b.RoPE(6, 40, traditional=traditional)
    starts = np.array([17, 0, 38])
    positions = starts[:, None] + np.arange(2)
    expected = rope64(x, positions, traditional=traditional)
    idea = (
        "row i of the batch turns by its own positions: cos and sin of (B, L, D/2) get an axis for the heads"
    )
    by_slices = b.numpy(rope(b.array(x), [slice(p, p + 2) for p in starts.tolist()]))
    assert_close(by_slices, expected, atol=1e-4, idea=idea)
    by_array = b.numpy(rope(b.array(x), b.array(positions)))
    assert_close(by_array, expected, atol=1e-4, idea=idea)


@pytest.mark.task("1.2.3")
@pytest.mark.parametrize("traditional", PAIRINGS)
def test_rope_in_bf16_rounds_once(b, rng, traditional):
    """bf16 in, bf16 out, float32 between: the result is the exact one, rounded once."""
    x = b.array(rng.normal(size=(2, 30, 3, 8)), "bfloat16")
    actual = b.RoPE(8, 30, traditional=traditional)(x)
    assert actual.dtype == x.dtype, "RoPE must return the type that it was given"
    expected = rope64(b.numpy(x).astype(np.float64), np.arange(30), traditional=traditional)
    idea = "compute in float32 and round to bf16 once, at the end"
    assert_close(b.numpy(actual), expected, atol=1e-4, rtol=2**-8, idea=idea)


@pytest.mark.task("1.2.3")
@pytest.mark.parametrize("traditional", PAIRINGS)
@pytest.mark.parametrize("start", FAR_STARTS)
def test_rope_in_bf16_far_into_a_text(b, rng, start, traditional):
    """Positions in an array, 250 to 30,000 tokens into the text, and x in bf16: the angles are those of float32."""
    x = b.array(rng.normal(size=(2, 5, 3, 8)), "bfloat16")
    positions = np.stack([np.arange(start, start + 5), [start, 7, 2049, 257, 0]])
    actual = b.numpy(b.RoPE(8, 30_100, 1000000, traditional)(x, b.array(positions)))
    expected = rope64(b.numpy(x).astype(np.float64), positions, 1000000, traditional)
    idea = f"positions around {start}: they pick rows of the tables, as integers, whatever the type of x"
    assert_close(actual, expected, atol=0.03, rtol=2**-8, idea=idea)


@pytest.mark.task("1.2.3")
@pytest.mark.parametrize("shape", [(1, 3, 1, 2), (2, 7, 3, 6)])
def test_a_devices_rope_honours_traditional_pairs(b, rng, shape):
    """The device's program knows halves alone: who asks it for traditional pairs gets those of this day."""
    x = rng.normal(size=shape)
    rope = b.solution.kernels.choose_kernels("device").rope(shape[-1], 40, 1000, traditional=True)
    idea = "traditional=True turns the pairs (2i, 2i+1), also with a device's kernels"
    assert_close(b.numpy(rope(b.array(x))), rope64(x, np.arange(shape[1]), 1000, True), atol=1e-4, idea=idea)


@pytest.mark.task("1.2.3")
def test_rope_leaves_its_input_alone(b, rng):
    """The caller's array is not turned in place: a float32 copy of a float32 array may be the array itself."""
    values = rng.normal(size=(1, 5, 2, 4))
    x = b.array(values)
    b.numpy(b.RoPE(4, 5)(x))
    assert_close(b.numpy(x), values, idea="RoPE wrote into the array that it was given")
