"""Week 1 Day 7: sampling. Oracle: the probabilities in NumPy float64; draws are compared with them by chi-square."""

import numpy as np
import pytest

from support.close import assert_close

ROWS = 20_000
OWN_ORDER = (
    "each row has its own order: read and write along it (take_along_axis and put_along_axis, gather and scatter in "
    "PyTorch); `p[:, order]` takes the order of every row for every row, B × B × V numbers"
)
LOGITS = np.array([0.2, 2.0, -1.0, 1.1, 0.6, -0.3, 1.6])


def softmax64(x: np.ndarray) -> np.ndarray:
    exps = np.exp(x - x.max(axis=-1, keepdims=True))
    return exps / exps.sum(axis=-1, keepdims=True)


def top_k64(logits: np.ndarray, top_k: int) -> np.ndarray:
    threshold = np.sort(logits, axis=-1)[..., -min(top_k, logits.shape[-1])]
    return np.where(logits < threshold[..., None], -np.inf, logits)


def top_p64(logits: np.ndarray, top_p: float) -> np.ndarray:
    """Row by row, as the definition says it."""
    if logits.ndim > 1:
        return np.stack([top_p64(row, top_p) for row in logits])
    kept, mass = np.full_like(logits, -np.inf), 0.0
    for token in np.argsort(-logits, kind="stable"):
        if mass >= top_p:
            break
        kept[token] = logits[token]
        mass += softmax64(logits)[token]
    return kept


def probabilities(logits, temp: float, top_p: float | None, top_k: int | None) -> np.ndarray:
    logits = np.asarray(logits, np.float64) / temp
    logits = top_k64(logits, top_k) if top_k else logits
    return softmax64(logits if top_p is None else top_p64(logits, top_p))


def assert_same_tokens_kept(actual: np.ndarray, expected: np.ndarray, idea: str) -> None:
    """Hidden tokens are -inf, the others as they were."""
    assert actual.shape == expected.shape, f"{idea}\n  shape {actual.shape}, expected {expected.shape}"
    kept, wanted = (
        [np.flatnonzero(np.isfinite(row)).tolist() for row in rows] for rows in (actual, expected)
    )
    assert kept == wanted, f"{idea}\n  tokens kept in each row: {kept}, expected {wanted}"
    numbers = np.isfinite(expected)
    assert_close(actual[numbers], expected[numbers], idea="the logits of the kept tokens must not change")


def drawn(b, choose, logits: np.ndarray, dtype: str | None = None) -> np.ndarray:
    """How often each token comes, from one batch in which the row stands ROWS times."""
    ids = b.numpy(choose(b.array(np.tile(logits, (ROWS, 1)), dtype)))
    assert ids.shape == (ROWS,), f"one id a row, shape ({ROWS},), not {ids.shape}"
    assert ids.dtype.kind in "iu", f"ids are integers, not {ids.dtype}"
    return np.bincount(ids, minlength=len(logits))


def assert_drawn_from(counts: np.ndarray, expected: np.ndarray, idea: str) -> None:
    """Chi-square; right code fails for less than one seed in a million, and the seed is fixed."""
    possible = expected > 0
    shares = np.round(counts / counts.sum(), 3)
    message = f"{idea}\n  share of each token: {shares}, expected {np.round(expected, 3)}"
    assert counts[~possible].sum() == 0, f"{message}\n  a token that must not come has come"
    wanted = counts.sum() * expected[possible]
    chi_square = ((counts[possible] - wanted) ** 2 / wanted).sum()
    assert chi_square < 24 + 3 * (possible.sum() - 1), f"{message}\n  chi-square {chi_square:.0f}"


@pytest.mark.task("1.7.1")
def test_draw_gives_every_row_its_own_random_numbers(b):
    """Equal rows get different tokens: two users with the same question must not get the same dice."""
    b.seed(3)
    ids = b.numpy(b.sampler.draw(b.array(np.zeros((64, 50)))))
    assert len(set(ids.tolist())) > 20, f"64 equal rows, 50 equal tokens, but only {set(ids.tolist())} came"


@pytest.mark.task("1.7.1")
@pytest.mark.parametrize("shift", [0, 1e4, -1e4])
def test_draw_follows_the_softmax(b, shift):
    """Token i comes with probability softmax(logits)[i], however large the logits are."""
    b.seed(1)
    logits = np.round(LOGITS * 4) / 4 + shift  # quarters are exact in float32 at 1e4
    idea = "draw must choose token i with probability softmax(logits)[i]"
    assert_drawn_from(drawn(b, b.sampler.draw, logits), softmax64(logits), idea)


@pytest.mark.task("1.7.1")
def test_draw_gives_every_row_its_own_probabilities(b):
    """Rows of one batch have nothing to do with each other: odd rows get theirs, even rows theirs."""
    b.seed(2)
    pair = np.stack([LOGITS, LOGITS[::-1]])
    ids = b.numpy(b.sampler.draw(b.array(np.tile(pair, (ROWS, 1)))))
    for parity, logits in enumerate(pair):
        counts = np.bincount(ids[parity::2], minlength=len(logits))
        assert_drawn_from(counts, softmax64(logits), "each row is drawn from its own logits")


@pytest.mark.task("1.7.1")
def test_draw_never_chooses_a_hidden_token(b):
    """A logit of -inf has probability 0; when one token is left, it is the one."""
    b.seed(4)
    logits = np.array([-np.inf, 1.0, -np.inf, 0.0, -np.inf])
    assert_drawn_from(
        drawn(b, b.sampler.draw, logits), softmax64(logits), "a hidden token must never be drawn"
    )
    alone = np.where(np.arange(5) == 3, 0.0, -np.inf)
    assert drawn(b, b.sampler.draw, alone)[3] == ROWS, "the only token that is left must always be drawn"


@pytest.mark.task("1.7.1")
def test_draw_repeats_with_the_seed_and_only_then(b):
    """The library's own seed decides: same seed, same ids; the next call goes on with fresh numbers."""
    logits = b.array(np.zeros((40, 9)))

    def ids(seed: int | None = None) -> list[int]:
        if seed is not None:
            b.seed(seed)
        return b.numpy(b.sampler.draw(logits)).tolist()

    first, second = ids(5), ids()
    assert ids(5) == first, "the same seed must give the same ids"
    assert second != first, "the second call must not repeat the first: no key or seed inside draw"
    assert ids(6) != first, "another seed must give other ids"


@pytest.mark.task("1.7.2")
@pytest.mark.parametrize("top_k", [1, 2, 5, 9, 12])
def test_keep_top_k_equals_numpy(b, rng, top_k):
    """In each row the top_k largest logits stay as they are, the others become -inf; more than V hides nothing."""
    logits = rng.normal(size=(4, 9)) + 5 * np.arange(4)[:, None]
    idea = f"each row keeps its own {min(top_k, 9)} largest, whatever the other rows keep"
    actual = b.numpy(b.sampler.keep_top_k(b.array(logits), top_k))
    assert_same_tokens_kept(actual, top_k64(logits, top_k), idea)


@pytest.mark.task("1.7.2")
def test_keep_top_k_keeps_what_is_equal_to_the_last_one(b):
    """Nothing tells equal tokens apart, so all of them stay."""
    logits = np.array([[1.0, 3.0, 3.0, 3.0, 0.0], [2.0, 2.0, 1.0, 5.0, 1.0]])
    actual = b.numpy(b.sampler.keep_top_k(b.array(logits), 2))
    expected = np.array([[-np.inf, 3, 3, 3, -np.inf], [2, 2, -np.inf, 5, -np.inf]])
    assert_same_tokens_kept(actual, expected, "tokens that equal the k-th largest stay too")


@pytest.mark.task("1.7.2")
def test_keep_top_k_takes_hidden_tokens(b):
    """With fewer than k tokens left nothing more is hidden, and nothing comes back."""
    logits = np.array([[-np.inf, 1.0, -np.inf, 0.5], [3.0, 2.0, 1.0, 0.0]])
    actual = b.numpy(b.sampler.keep_top_k(b.array(logits), 3))
    expected = np.array([[-np.inf, 1.0, -np.inf, 0.5], [3.0, 2.0, 1.0, -np.inf]])
    assert_same_tokens_kept(actual, expected, "what was hidden before stays hidden")


@pytest.mark.task("1.7.3")
@pytest.mark.parametrize(("top_p", "vocab"), [(0.05, 11), (0.3, 300), (0.6, 11), (0.9, 300), (0.99, 11)])
def test_keep_top_p_equals_numpy(b, rng, top_p, vocab):
    """Each row keeps the fewest tokens, most probable first, whose probabilities reach top_p, at their own places."""
    logits, idea = rng.normal(size=(5, vocab)) * np.array([[0.3], [1], [2], [3], [6]]), OWN_ORDER
    actual = b.numpy(b.sampler.keep_top_p(b.array(logits), top_p))
    if actual.ndim == 2:
        idea = "the nucleus: sort, add up until top_p is reached, and mark the tokens at their own places"
    assert_same_tokens_kept(actual, top_p64(logits, top_p), idea)


@pytest.mark.task("1.7.3")
def test_keep_top_p_keeps_the_token_that_crosses_the_line(b):
    """With probabilities .7 and .3, p = .5 keeps the first, and p = .71 keeps both."""
    logits = np.log([[0.3, 0.7]])
    for top_p, expected in ((0.5, [[False, True]]), (0.69, [[False, True]]), (0.71, [[True, True]])):
        kept = np.isfinite(b.numpy(b.sampler.keep_top_p(b.array(logits), top_p)))
        assert kept.tolist() == expected, (
            f"p = {top_p} keeps {kept.tolist()}: the token that reaches p belongs to it"
        )


@pytest.mark.task("1.7.3")
@pytest.mark.parametrize("top_p", [1e-9, 1e-3, 0.2])
def test_keep_top_p_always_keeps_the_best(b, rng, top_p):
    """Below the probability of the best token only that one is left: greedy."""
    logits = rng.normal(size=(6, 8))
    logits[np.arange(6), rng.integers(0, 8, 6)] = 6
    kept = np.isfinite(b.numpy(b.sampler.keep_top_p(b.array(logits), top_p)))
    assert (kept == (logits == 6)).all(), f"p = {top_p} is less than the best token has: it alone stays"


@pytest.mark.task("1.7.3")
@pytest.mark.parametrize(("top_p", "count"), [(0.25, 2), (0.26, 3), (0.5, 4), (0.51, 5), (1.0, 8)])
def test_keep_top_p_is_the_smallest_set_among_equals(b, top_p, count):
    """Of eight equal tokens, p = 1/4 takes exactly two: reached is enough, and equal tokens are not one block."""
    kept = np.isfinite(b.numpy(b.sampler.keep_top_p(b.array(np.zeros((3, 8))), top_p)))
    assert kept.sum(axis=-1).tolist() == [count] * 3, (
        f"p = {top_p} of 8 equal tokens keeps {kept.sum(-1)}, not {count}"
    )


@pytest.mark.task("1.7.3")
def test_keep_top_p_takes_hidden_tokens(b):
    """Hidden tokens have probability 0: the others share the 1, and nothing hidden comes back."""
    logits = np.array([[-np.inf, 1.0, -np.inf, 0.9, 0.8], [-np.inf] * 4 + [2.0]])
    actual = b.numpy(b.sampler.keep_top_p(b.array(logits), 0.6))
    expected = np.array([[-np.inf, 1.0, -np.inf, 0.9, -np.inf], [-np.inf] * 4 + [2.0]])
    idea = "probabilities are shares of the tokens that are still there"
    assert_same_tokens_kept(actual, expected, idea)


@pytest.mark.task("1.7.4")
@pytest.mark.parametrize("options", [{}, {"top_p": 0.9, "top_k": 3}])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_temperature_zero_is_greedy(b, rng, options, dtype):
    """temp 0 is the largest logit of each row, without dice, whatever top-p and top-k say."""
    logits = np.round(rng.normal(size=(9, 31)), 1)
    logits[np.arange(9), rng.integers(0, 31, 9)] = 4
    ids = b.numpy(b.make_sampler(0, **options)(b.array(logits, dtype)))
    assert ids.shape == (9,), f"one id a row, not shape {ids.shape}"
    assert (ids == logits.argmax(-1)).all(), f"temp 0 must take the largest logit of each row: {ids}"


def assert_own_order(b) -> None:
    """Three rows with three orders; a test of many rows asks first, since B × B × V numbers would not end."""
    logits, idea = np.stack([LOGITS, LOGITS[::-1], np.roll(LOGITS, 3)]), OWN_ORDER
    for options in ({"top_p": 0.01}, {"top_k": 1}):
        ids = b.numpy(b.make_sampler(1.0, **options)(b.array(logits))).tolist()
        assert ids == logits.argmax(-1).tolist(), f"{idea}\n  {ids} came, not {logits.argmax(-1).tolist()}"


@pytest.mark.task("1.7.4")
def test_sampler_orders_each_row_by_itself(b):
    """Where one token of a row is left, it is the best one of that row."""
    assert_own_order(b)


@pytest.mark.task("1.7.4")
@pytest.mark.parametrize("temp", [0.5, 1.0, 2.0])
@pytest.mark.parametrize(
    ("top_p", "top_k"), [(None, None), (1.0, 0), (0.75, None), (None, 3), (0.75, 3), (0.3, 6)]
)
def test_sampler_follows_the_definition(b, temp, top_p, top_k):
    """Temperature first, then top-k, then top-p, then a draw from what is left; None, 0 and 1 are off."""
    assert_own_order(b)
    b.seed(7)
    expected = probabilities(LOGITS, temp, top_p, top_k)
    counts = drawn(b, b.make_sampler(temp, top_p, top_k), LOGITS)
    idea = "divide by the temperature, then top-k, then top-p of what is left, then draw"
    assert_drawn_from(counts, expected, idea)


@pytest.mark.task("1.7.4")
def test_sampler_treats_every_row_alone(b):
    """One batch, three rows that need different thresholds and have nuclei of different sizes."""
    assert_own_order(b)
    b.seed(8)
    rows = np.stack([LOGITS, 3 * LOGITS[::-1] + 20, np.roll(LOGITS, 3) / 4 - 20])
    ids = b.numpy(b.make_sampler(0.8, 0.85, 6)(b.array(np.tile(rows, (ROWS, 1)))))
    for index, row in enumerate(rows):
        counts = np.bincount(ids[index :: len(rows)], minlength=len(row))
        assert_drawn_from(
            counts, probabilities(row, 0.8, 0.85, 6), f"row {index} of the batch has its own nucleus"
        )


@pytest.mark.task("1.7.4")
@pytest.mark.parametrize("logits", [[61.0, 59.0, 40.0], [40.0, 45.0, 47.0]])
def test_sampler_computes_in_float32(b, logits):
    """bf16 logits become float32 before the division: in bf16 59 / 0.7 would be 84.5 and not 84.29."""
    b.seed(9)
    counts = drawn(b, b.make_sampler(0.7), np.array(logits), "bfloat16")
    idea = "convert bf16 logits to float32 first: bf16 has 8 bits, so 59 / 0.7 is off by a fifth"
    assert_drawn_from(counts, probabilities(logits, 0.7, None, None), idea)


@pytest.mark.task("1.7.4")
def test_sampler_leaves_its_input_alone(b, rng):
    """The logits belong to the caller, who may want to look at them afterwards."""
    logits = rng.normal(size=(3, 8))
    array = b.array(logits)
    b.numpy(b.make_sampler(0.5, 0.7, 4)(array))
    assert_close(b.numpy(array), logits, idea="the sampler changed the caller's logits in place")


@pytest.mark.task("1.7.4")
def test_sampler_works_on_any_batch_and_vocabulary(b, rng):
    """One sampler serves batches of any size, and vocabularies smaller than top_k."""
    sampler = b.make_sampler(1.0, 0.9, 50)
    for shape in ((1, 8), (3, 51), (7, 2)):
        ids = b.numpy(sampler(b.array(rng.normal(size=shape))))
        assert ids.shape == shape[:1] and ids.max() < shape[1], f"{ids} for logits of shape {shape}"


@pytest.mark.task("1.7.4")
@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"temp": -0.1}, "temp is -0.1"),
        ({"temp": float("nan")}, "temp is nan"),
        ({"temp": float("inf")}, "temp is inf"),
        ({"temp": 1.0, "top_p": 0.0}, "top_p is 0.0"),
        ({"temp": 1.0, "top_p": 1.1}, "top_p is 1.1"),
        ({"temp": 1.0, "top_k": -1}, "top_k is -1"),
        ({"temp": 1.0, "top_k": 2.5}, "top_k is 2.5"),
    ],
)
def test_make_sampler_refuses_what_has_no_meaning(b, options, named):
    """A number out of range is an error that names it, when the sampler is made; numbers at the edge are none."""
    with pytest.raises(ValueError, match=named):
        b.make_sampler(**options)
    assert b.numpy(b.make_sampler(0, 1.0, 0)(b.array([[0.0, 1.0]]))).tolist() == [1]
