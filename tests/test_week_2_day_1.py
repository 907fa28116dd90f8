"""Week 2 Day 1: the KV cache. Oracles: all tokens at once, by NumPy, transformers and Week 1's model."""

import re
from functools import partial
from importlib import import_module
from itertools import accumulate, groupby, pairwise

import numpy as np
import pytest

from support.close import assert_close
from support.fake_model import END, OTHER_END, ByteTokenizer
from support.goldens import golden
from support.masks import FAR_STARTS, MANY, SHORT_TYPES, assert_shows, visible_keys
from support.qwen3_layer import causal64, layer64, recognise
from tiny_llm_course.grading.small_models import CASES, random_checkpoint, random_weights, small_model

CASE_NAMES = list(CASES)
B, HKV, D = 2, 3, 4
PIECES = [(5,), (1,) * 5, (4, 1, 1, 3), (1, 6, 2)]


def spans(pieces):
    """(start, stop) of each piece."""
    return pairwise(accumulate(pieces, initial=0))


def visible(b, mask, L: int, S: int) -> np.ndarray:
    """(L, S): which keys a mask shows, whatever form it has: none, the word, or numbers."""
    if mask is None:
        return np.ones((L, S), bool)
    numbers = causal64(L, S) if isinstance(mask, str) else b.numpy(mask)
    assert numbers.shape[-2:] in [(L, S), (1, S)], (
        f"the mask has shape {numbers.shape}, and {S} keys came back for {L} queries: return all positions that the "
        "mask is for, not only the new ones"
    )
    return np.broadcast_to(numbers.reshape(-1, S) == 0, (L, S))


def keys_and_values(rng, tokens: int) -> tuple[np.ndarray, np.ndarray]:
    return tuple(rng.normal(size=(2, B, HKV, tokens, D)))


def feed(b, cache, pair, start: int, stop: int, mask=None, **options):
    """Gives the cache the tokens start … stop - 1 of a pair of keys and values."""
    key, value = (b.array(array[:, :, start:stop]) for array in pair)
    return cache.update_and_fetch(key, value, stop - start, mask, **options)


def memory_of(cache) -> tuple:
    """The arrays of a cache that has tokens."""
    has_memory = cache.keys is not None and cache.values is not None
    assert has_memory, "the memory of a cache is `self.keys` and `self.values`, as __init__ names it"
    return cache.keys, cache.values


def assert_holds(b, cache, result, pair, start: int, stop: int) -> None:
    """The result of feeding tokens start … stop - 1: all tokens so far, and a mask that shows each its own past."""
    key, value, length, mask = result
    assert (length, cache.offset) == (stop, stop), (
        f"{stop} tokens were given: length is {length}, offset is {cache.offset}; count the L new tokens once"
    )
    S = key.shape[2]
    assert stop <= S, f"{S} keys came back of {stop}: all tokens so far are returned, not only the new ones"
    for name, actual, expected in zip(("keys", "values"), (key, value), pair, strict=True):
        idea = f"the {name} of tokens 0 … {stop - 1} come back as they were given, in order"
        assert_close(b.numpy(actual)[:, :, :stop], expected[:, :, :stop], atol=0, rtol=1e-6, idea=idea)
    shown = visible(b, mask, stop - start, S)
    expected = np.arange(S) <= np.arange(start, stop)[:, None]
    idea = (
        f"with tokens {start} … {stop - 1} new and {S} keys, each token sees the keys up to its own position"
    )
    assert_close(shown, expected, idea=f"{idea}, and nothing after the last token")


@pytest.mark.task("2.1.1")
@pytest.mark.parametrize("pieces", PIECES)
def test_concatenated_cache_returns_all_tokens(b, rng, pieces):
    """Pieces of any length go in, and all keys and values so far come back, the oldest first, in each of two caches."""
    pairs = [keys_and_values(rng, sum(pieces)) for _ in range(2)]
    caches = [b.ConcatenatedKvCache() for _ in range(2)]
    for start, stop in spans(pieces):
        for cache, pair in zip(caches, pairs, strict=True):
            result = cache.append(*(b.array(array[:, :, start:stop]) for array in pair))
            for name, actual, expected in zip(("keys", "values"), result, pair, strict=True):
                idea = f"tokens {start} … {stop - 1} came: the {name} of tokens 0 … {stop - 1} come back, in order"
                assert_close(b.numpy(actual), expected[:, :, :stop], atol=0, rtol=1e-6, idea=idea)


@pytest.mark.task("2.1.2")
@pytest.mark.parametrize("pieces", [*PIECES, (255, 1, 1, 3), (256, 1), (3, 300, 1)])
@pytest.mark.parametrize("mask", [None, "causal"])
def test_cache_returns_all_tokens(b, rng, pieces, mask):
    """Pieces of any length go in; keys and values of all tokens so far, their number, and a fitting mask come back."""
    pair, cache = keys_and_values(rng, sum(pieces)), b.TinyKvFullCache(310)
    for start, stop in spans(pieces):
        assert_holds(b, cache, feed(b, cache, pair, start, stop, mask), pair, start, stop)


@pytest.mark.task("2.1.2")
@pytest.mark.parametrize("rows", [None, B])
def test_cache_takes_positions_as_an_array(b, rng, rows):
    """Positions (L,) or (B, L) in an array say where the new tokens stand: the same places as without them."""
    pair, cache = keys_and_values(rng, 9), b.TinyKvFullCache(9)
    for start, stop in spans((4, 1, 1, 3)):
        positions = np.arange(start, stop)
        positions = b.array(positions if rows is None else np.tile(positions, (rows, 1)))
        result = feed(b, cache, pair, start, stop, positions=positions)
        assert_holds(b, cache, result, pair, start, stop)


@pytest.mark.task("2.1.2")
def test_cache_passes_an_array_mask_on(b, rng):
    """A mask that is an array is the caller's own: it comes back untouched, the very object."""
    pair, cache = keys_and_values(rng, 8), b.TinyKvFullCache(8)
    for start, stop in spans((5, 1, 2)):
        mask = b.array(np.zeros((stop - start, cache.num_keys(stop - start))))
        passed = feed(b, cache, pair, start, stop, mask)[3]
        assert passed is mask, "an array is passed on as it is: only a word or None asks the cache for a mask"


@pytest.mark.task("2.1.2")
@pytest.mark.parametrize("dtype", SHORT_TYPES)
@pytest.mark.parametrize("start", FAR_STARTS)
def test_the_caches_mask_is_exact_far_into_a_text(b, start, dtype):
    """13 tokens behind 250 and more, in bf16 and float16, which have no 257 and no 2,049."""
    cache = b.TinyKvFullCache(start + MANY)
    for L in (start, MANY):
        pair = [b.array(np.zeros((1, 1, L, 2)), dtype) for _ in range(2)]
        key, _, _, mask = cache.update_and_fetch(*pair, L)
    shown = visible(b, mask, MANY, key.shape[2])
    expected = visible_keys(np.arange(start, start + MANY), key.shape[2])
    idea = (
        f"{MANY} {dtype} tokens after {start}: positions are integers, and only the finished mask is {dtype}"
    )
    assert_close(shown, expected, idea=idea)


@pytest.mark.task("2.1.2")
def test_cache_leaves_the_callers_arrays_alone(b, rng):
    """What was given in one step is copied into the cache: later tokens are not written into the caller's arrays."""
    pair, cache = keys_and_values(rng, 6), b.TinyKvFullCache(6)
    given = [b.array(array[:, :, :5]) for array in pair]
    before = [b.numpy(array).copy() for array in given]
    cache.update_and_fetch(*given)
    cache.offset = 2  # as after rewind(3): the next token is written over an earlier one
    feed(b, cache, pair, 5, 6)
    for array, expected in zip(given, before, strict=True):
        idea = "the cache wrote into the caller's array: copy the first tokens too, into memory of the cache"
        assert_close(b.numpy(array), expected, atol=0, rtol=0, idea=idea)


@pytest.mark.task("2.1.2")
def test_two_caches_do_not_know_of_each_other(b, rng):
    """Each layer has a cache of its own: tokens of one never appear in the other."""
    pairs, caches = [keys_and_values(rng, 6) for _ in range(2)], [b.TinyKvFullCache(6) for _ in range(2)]
    for start, stop in spans((3, 1, 2)):
        results = [feed(b, cache, pair, start, stop) for cache, pair in zip(caches, pairs, strict=True)]
        for cache, result, pair in zip(caches, results, pairs, strict=True):
            assert_holds(b, cache, result, pair, start, stop)


@pytest.mark.task("2.1.2")
def test_cache_keeps_the_type(b, rng):
    """bf16 keys and values come back in bf16: a cache that widens them takes twice the memory."""
    cache = b.TinyKvFullCache(4)
    for L in (2, 1):
        pair = [b.array(rng.normal(size=(B, HKV, L, D)), "bfloat16") for _ in range(2)]
        key, value, _, _ = cache.update_and_fetch(*pair)
        assert key.dtype == value.dtype == b.dtype("bfloat16"), f"bf16 went in, {key.dtype} came back"


@pytest.mark.task("2.1.2")
def test_cache_refuses_more_than_fits(b, rng):
    """max_seq_len tokens fit; one more is a ValueError that says so, and the cache is as it was."""
    pair, cache = keys_and_values(rng, 8), b.TinyKvFullCache(7)
    feed(b, cache, pair, 0, 5)
    with pytest.raises(ValueError, match=r"5 \+ 3 tokens .* holds 7"):
        feed(b, cache, pair, 5, 8)
    assert_holds(b, cache, feed(b, cache, pair, 5, 7), pair, 5, 7)


@pytest.mark.task("2.1.2")
@pytest.mark.parametrize("pieces", [(300, 1, 299, 1), (1, 600), (255, 2, 256)])
def test_cache_without_a_limit_takes_any_number(b, rng, pieces):
    """`TinyKvFullCache()` has no limit: it grows when it is full, and loses nothing by it."""
    pair, cache = keys_and_values(rng, sum(pieces)), b.TinyKvFullCache()
    for start, stop in spans(pieces):
        try:
            result = feed(b, cache, pair, start, stop)
        except ValueError as error:
            pytest.fail(f"a cache without a limit takes {stop} tokens: {error}")
        assert_holds(b, cache, result, pair, start, stop)


@pytest.mark.task("2.1.2")
@pytest.mark.parametrize(
    "pieces", [(1,) * 600, (200,) * 3, (256, 1, 255, 88)], ids=["1", "200", "full steps"]
)
def test_cache_grows_in_steps_of_256(b, rng, pieces):
    """Growing copies the cache: it happens when 256, 512, … tokens are full, and then by 256 positions."""
    pair, cache, lengths = keys_and_values(rng, sum(pieces)), b.TinyKvFullCache(), []
    for start, stop in spans(pieces):
        feed(b, cache, pair, start, stop)
        lengths.append(tuple(part.shape[2] for part in memory_of(cache)))
    expected = [(-(-stop // 256) * 256,) * 2 for _, stop in spans(pieces)]
    # As (length, how often in a row): of lists with 600 entries pytest would show the difference, for minutes.
    found, wanted = ([(length, len([*same])) for length, same in groupby(all)] for all in (lengths, expected))
    assert found == wanted, (
        f"up to {sum(pieces)} tokens the memory is {sorted(set(expected))} positions long, in this order, for keys "
        f"and values; here it is {list(dict.fromkeys(lengths))[:5]}"
    )


RECORDERS = {"torch": "tiny_llm_course.recorded_operations"}


def program_of(b, cache, step) -> tuple:
    """What a compiler for fixed shapes would compile for a step: PyTorch's operations. MLX compiles nothing."""
    if recorder := RECORDERS.get(b.name):
        return import_module(recorder).record(step).signature
    step()
    return tuple(part.shape for part in memory_of(cache))


@pytest.mark.task("2.1.2")
def test_every_token_is_the_same_program(b, rng):
    """Of tokens 250 to 265 those up to 256 keys are one program, those after it another, whatever their positions.

    PyTorch has all its memory from the first token on, and gives a prompt back as it came.
    """
    pair, cache, programs, room = keys_and_values(rng, 266), b.TinyKvFullCache(600), set(), set()
    prompt = [b.array(array[:, :, :250]) for array in pair]
    returned = cache.update_and_fetch(*prompt, 250)
    for token in range(250, 266):
        new = [b.array(array[:, :, token : token + 1]) for array in pair]
        step = partial(cache.update_and_fetch, *new, 1, "causal", positions=b.array([token]))
        programs.add(program_of(b, cache, step))
        room.add(memory_of(cache)[0].shape[2])
    assert len(programs) == 2, (
        f"16 tokens over 256 and then 512 keys are {len(programs)} programs, not 2: numbers in a slice are part of the "
        "program, so PyTorch writes with index_copy_ at `positions`, into memory for max_seq_len; MLX grows by 256"
    )
    if b.name in RECORDERS:
        assert room == {768}, f"the memory is {sorted(room)} long: make room for max_seq_len, 600, once"
        assert returned[0] is prompt[0] and returned[1] is prompt[1], (
            "with is_prompt the new keys and values are all there is: store them, and return the `key` and `value` "
            "that came in, not a copy in memory"
        )


@pytest.mark.task("2.1.2")
def test_a_released_cache_starts_afresh(b, rng):
    """After release() the cache is empty, for another text and another number of rows."""
    pair, cache = keys_and_values(rng, 6), b.TinyKvFullCache(6)
    feed(b, cache, pair, 0, 4)
    cache.release()
    assert cache.offset == 0, "release forgets all tokens"
    other = [array[:1, :, ::-1] for array in pair]
    for start, stop in spans((3, 1)):
        assert_holds(b, cache, feed(b, cache, other, start, stop), other, start, stop)


@pytest.mark.task("2.1.2")
def test_a_token_costs_no_copy_of_the_cache(b):
    """Writing one token behind 500 takes the memory of a few tokens: the others stay where they are."""
    cache, shape = b.TinyKvFullCache(1000), (1, 4, 500, 32)
    cache.update_and_fetch(b.array(np.ones(shape)), b.array(np.ones(shape)))
    cache.materialize()
    one = b.array(np.ones((1, 4, 1, 32)))

    def run():
        # Read a little of the result, and give it back before the next token, as a model does.
        key, value, _, _ = cache.update_and_fetch(one, one)
        return key[:, :, :1] + value[:, :, :1]

    peak, keys = b.peak_bytes(run), 4 * 4 * 500 * 32
    assert peak < keys / 2, (
        f"one token took {peak:,} bytes, and the keys have {keys:,}: the cache was copied. "
        "Write into the memory that is there; concatenating makes a new array for every token"
    )


def rewound(b, rng, tokens: int, n: int):
    """A cache of `tokens` tokens, n of them taken back; and what it now holds."""
    pair, cache = keys_and_values(rng, tokens), b.TinyKvFullCache(600)
    feed(b, cache, pair, 0, tokens)
    try:
        cache.rewind(n)
    except ValueError as error:
        pytest.fail(f"rewind({n}) of {tokens} tokens is allowed: {error}")
    return cache, [array[:, :, : tokens - n] for array in pair]


@pytest.mark.task("2.1.3")
@pytest.mark.parametrize(
    ("tokens", "n", "pieces"),
    [(7, 3, (1, 1)), (7, 1, (2, 1)), (7, 0, (5,)), (7, 7, (2, 1)), (258, 5, (5,)), (300, 200, (1, 1))],
)
def test_rewind_then_other_tokens(b, rng, tokens, n, pieces):
    """The last n tokens are forgotten; others are written over them, and no trace of the old ones is seen."""
    cache, past = rewound(b, rng, tokens, n)
    assert cache.offset == tokens - n, f"{tokens} tokens less {n} are {tokens - n}, not {cache.offset}"
    pair = [np.concatenate([old, rng.normal(size=(B, HKV, sum(pieces), D))], axis=2) for old in past]
    for start, stop in spans(pieces):
        start, stop = start + tokens - n, stop + tokens - n
        assert_holds(b, cache, feed(b, cache, pair, start, stop), pair, start, stop)


@pytest.mark.task("2.1.3")
def test_rewind_counts_what_is_left(b, rng):
    """Two calls take back the sum: 9 - 2 - 3 = 4."""
    cache, _ = rewound(b, rng, 9, 2)
    cache.rewind(3)
    assert cache.offset == 4, f"rewind(2) and rewind(3) of 9 tokens leave 4, not {cache.offset}"


@pytest.mark.task("2.1.3")
@pytest.mark.parametrize("n", [-1, 6, 100])
def test_rewind_refuses_what_has_no_meaning(b, rng, n):
    """Fewer than no token, or more than there are: ValueError with both numbers, and the cache is as it was."""
    cache, _ = rewound(b, rng, 6, 1)
    try:
        cache.rewind(n)
    except ValueError as error:
        missing = {str(n), "5"} - set(re.findall(r"-?\d+", str(error)))
        assert not missing, f"the message must name {' and '.join(sorted(missing))}: {error}"
    else:
        pytest.fail(f"rewind({n}) of 5 tokens must raise ValueError")
    assert cache.offset == 5, f"after a refused rewind the cache still holds 5 tokens, not {cache.offset}"


def model_of(b, name: str, dtype: str = "float32", silent: tuple[str, ...] = ()):
    """Week 2's model of a case. The matrices whose names end in one of `silent` are all zeros."""
    checkpoint = random_checkpoint(b, CASES[name], dtype)
    for weight in checkpoint.weights:
        if weight.removesuffix(".weight").endswith(silent or ("none",)):
            checkpoint.weights[weight] = checkpoint.weights[weight] * 0
    return b.Qwen3ModelWeek2(checkpoint)


def through(b, model, part, x: np.ndarray, pieces) -> np.ndarray:
    """What `part` of a layer, given (x, step, cache), makes of a stream (B, L, E) that comes in pieces."""
    caches, outputs = model.create_kv_cache(), []
    for start, stop in spans(pieces):
        step = model.begin(np.zeros((len(x), stop - start)), start, caches, "causal")
        outputs.append(b.numpy(part(b.array(x[:, start:stop]), step, caches[0])))
        assert caches[0].offset == stop, f"the cache must hold {stop} tokens then, not {caches[0].offset}"
    return np.concatenate(outputs, axis=1)


def in_pieces(tokens: int) -> list[tuple[int, ...]]:
    return [(tokens,), (1,) * tokens, (tokens - 3, 1, 2), (1, tokens - 1)]


def oracle_of(name: str) -> tuple[list[np.ndarray], dict]:
    """The weights and options of `layer64` for a case's layer 0."""
    weights, prefix = random_weights(CASES[name]), "model.layers.0.self_attn."
    names = ("q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm")
    config = CASES[name].config
    return [weights[f"{prefix}{n}.weight"].astype(np.float64) for n in names], {
        "theta": config.rope_theta,
        "eps": config.rms_norm_eps,
    }


@pytest.mark.task("2.1.4")
@pytest.mark.parametrize(("name", "cut"), [(CASE_NAMES[cut % 3], cut) for cut in range(4)])
def test_attention_equals_all_tokens_at_once(b, name, cut):
    """However the text is cut, attention equals transformers' over the whole of it; one piece is Week 1's case."""
    stored, model, config = golden(name), model_of(b, name), CASES[name].config
    pieces = in_pieces(CASES[name].tokens)[cut]
    L = CASES[name].tokens
    idea = (
        "norm q and k, turn them by step.rows, store the turned keys and the plain values, and attend over "
        "the keys and values that the cache returns, of all tokens so far, not only over the new ones"
    )
    actual = through(b, model, model.layers[0].attention, stored["x"], pieces)
    if len(pieces) == 1:
        weights, options = oracle_of(name)
        idea = recognise(actual, stored["x"], weights, config.head_dim, idea, mask=causal64(L, L), **options)
    else:
        idea = f"the text came in pieces of {pieces}: {idea}; step.rows are for places in the text, not in a piece"
    assert_close(actual, stored["attention"], atol=1e-4, idea=idea)


@pytest.mark.task("2.1.4")
def test_attention_obeys_a_mask_array(b, rng):
    """A mask of the caller's own hides what it likes: here key 1, from a prompt and from a later token."""
    name, x = "untied-3", rng.normal(size=(1, 6, 36))
    weights, options = oracle_of(name)
    hidden = causal64(6, 6)
    hidden[2:, 1] = -np.inf
    expected = layer64(x, weights, 10, hidden, **options)
    model = model_of(b, name)
    caches = model.create_kv_cache(6)
    for start, stop in ((0, 5), (5, 6)):
        mask = np.full((stop - start, caches[0].num_keys(stop - start)), -np.inf)
        mask[:, :stop] = hidden[start:stop, :stop]
        step = model.begin(np.zeros((1, stop - start)), start, caches, b.array(mask))
        actual = b.numpy(model.layers[0].attention(b.array(x[:, start:stop]), step, caches[0]))
        idea = "the mask of the step must reach attention by way of the cache"
        assert_close(actual, expected[:, start:stop], atol=1e-4, idea=idea)


@pytest.mark.task("2.1.4")
def test_attention_takes_the_mask_that_the_cache_returns(b, rng):
    """A step without a mask leaves it to the cache: what `update_and_fetch` returns is the mask to use."""
    name, x = "tied-8", rng.normal(size=(1, 7, 24))
    weights, options = oracle_of(name)
    expected = layer64(x, weights, 6, causal64(7, 7), **options)
    model = model_of(b, name)
    cache = model.create_kv_cache(7)[0]
    for start, stop in ((0, 4), (4, 7)):
        positions = b.array(np.arange(start, stop))
        step = b.Step(positions, model.rope.rows(positions), None)
        actual = b.numpy(model.layers[0].attention(b.array(x[:, start:stop]), step, cache))
        idea = "the cache returns (key, value, length, mask); attention needs that mask, because it fits those keys"
        assert_close(actual, expected[:, start:stop], atol=1e-4, idea=idea)


@pytest.mark.task("2.1.4")
def test_attention_gives_the_cache_all_that_it_may_need(b, monkeypatch):
    """How many tokens, the step's mask and the step's positions: a cache of another kind has nothing else to go by."""
    stored, model = golden("tied-1"), model_of(b, "tied-1")
    cache, calls = model.create_kv_cache()[0], []
    update = cache.update_and_fetch

    def recorded(key, value, mask_length=None, mask=None, *, positions=None):
        calls.append((mask_length, mask, positions))
        return update(key, value, mask_length, mask, positions=positions)

    monkeypatch.setattr(cache, "update_and_fetch", recorded)
    step = model.begin(np.zeros((2, 6)), 0, [cache] * len(model.layers), "causal")
    model.layers[0].attention(b.array(stored["x"][:, :6]), step, cache)
    ((length, mask, positions),) = calls
    assert length == 6, f"the cache gets L, the number of new tokens, not {length}"
    assert mask is step.mask, "the cache gets step.mask"
    assert positions is step.positions, "the cache gets positions=step.positions"


@pytest.mark.task("2.1.4")
def test_attention_keeps_the_type(b):
    """bf16 weights and a bf16 stream give a bf16 answer, near the exact one, for a prompt and for one token."""
    stored, model = golden("tied-1"), model_of(b, "tied-1", "bfloat16")
    caches = model.create_kv_cache()
    for start, stop in ((0, 6), (6, 7)):
        step = model.begin(np.zeros((2, stop - start)), start, caches, "causal")
        x = b.array(stored["x"][:, start:stop], "bfloat16")
        actual = model.layers[0].attention(x, step, caches[0])
        assert actual.dtype == b.dtype("bfloat16"), f"a bf16 stream must stay bf16, not {actual.dtype}"
        idea = "attention in bf16 is far from the exact one"
        assert_close(b.numpy(actual), stored["attention"][:, start:stop], atol=0.1, idea=idea)


@pytest.mark.task("2.1.5")
@pytest.mark.parametrize("name", CASE_NAMES)
def test_layer_adds_to_the_stream(b, name):
    """Where attention and the MLP answer 0, the layer hands the stream on untouched: nothing normalises it."""
    x, model = golden(name)["x"], model_of(b, name, silent=("o_proj", "down_proj"))
    actual = through(b, model, model.layers[0], x, (2, 1, CASES[name].tokens - 3))
    idea = "x + attention(norm(x)), then x + mlp(norm(x)): what is added to must be the stream, not a normed copy"
    assert_close(actual, x, atol=0, rtol=0, idea=idea)


@pytest.mark.task("2.1.5")
@pytest.mark.parametrize(("name", "cut"), [(CASE_NAMES[cut % 3], cut) for cut in range(4)])
def test_layer_equals_all_tokens_at_once(b, name, cut):
    """However the text is cut, the layer equals transformers' Qwen3DecoderLayer over the whole of it."""
    stored, model = golden(name), model_of(b, name)
    pieces = in_pieces(CASES[name].tokens)[cut]
    actual = through(b, model, model.layers[0], stored["x"], pieces)
    idea = "attention on input_layernorm(x), then the MLP on post_attention_layernorm of the stream it was added to"
    assert_close(actual, stored["block"], atol=1e-4, idea=idea)


@pytest.mark.task("2.1.5")
@pytest.mark.parametrize("silent", ["o_proj", "down_proj"])
def test_each_half_of_the_layer_has_its_norm(b, silent):
    """With one half silent the layer is the other half of Week 1's: the same norms, the same residual."""
    x, model = golden("untied-3")["x"], model_of(b, "untied-3", silent=(silent,))
    config, layer, stream = CASES["untied-3"].config, model.layers[0], b.array(x)
    if silent == "o_proj":
        matrices = (w.weight for w in (layer.mlp.w_gate, layer.mlp.w_up, layer.mlp.w_down))
        mlp = b.Qwen3MLP(config.hidden_size, config.intermediate_size, *matrices)
        expected, half = stream + mlp(layer.post_attention_layernorm(stream)), "the MLP reads the second norm"
    else:
        weights, options = oracle_of("untied-3")
        normed = b.numpy(layer.input_layernorm(stream)).astype(np.float64)
        expected = b.array(x + layer64(normed, weights, 10, causal64(11, 11), **options))
        half = "attention reads the first norm"
    actual = through(b, model, layer, x, (4, 1, 6))
    assert_close(actual, b.numpy(expected), atol=1e-4, idea=f"{half}, and its answer is added to x")


@pytest.mark.task("2.1.5")
def test_layer_leaves_its_input_alone(b):
    """The stream before a layer is still there after it: whoever holds it does not expect it to change."""
    x, model = golden("tied-1")["x"], model_of(b, "tied-1")
    caches, array = model.create_kv_cache(), b.array(x)
    b.numpy(model.layers[0](array, model.begin(x[..., 0], 0, caches, "causal"), caches[0]))
    idea = "the layer wrote into its input: write x = x + …, for x += … changes x itself"
    assert_close(b.numpy(array), x, atol=0, rtol=0, idea=idea)


@pytest.mark.task("2.1.5")
def test_layer_keeps_the_type(b):
    """bf16 weights and a bf16 stream give a bf16 stream."""
    stored, model = golden("tied-1"), model_of(b, "tied-1", "bfloat16")
    caches, x = model.create_kv_cache(), b.array(stored["x"], "bfloat16")
    actual = model.layers[0](x, model.begin(stored["inputs"], 0, caches, "causal"), caches[0])
    assert actual.dtype == b.dtype("bfloat16"), f"a bf16 stream must stay bf16, not {actual.dtype}"
    idea = "the layer in bf16 is far from the exact one"
    assert_close(b.numpy(actual), stored["block"], atol=0.2, idea=idea)


CUTS = {
    "at once": (29,),
    "token by token": (1,) * 29,
    "sevens": (7,) * 4 + (1,),
    "20 and 9": (20, 9),
    "20, then one by one": (20, *(1,) * 9),
    "1 and 28": (1, 28),
}


def logits_of(b, model, ids: np.ndarray, pieces, caches=None, **options) -> np.ndarray:
    """(B, L, V) logits of ids that come in pieces, all with the same caches."""
    caches, outputs = model.create_kv_cache() if caches is None else caches, []
    for start, stop in spans(pieces):
        try:
            outputs.append(b.numpy(model(b.array(ids[:, start:stop]), start, caches, **options)))
        except ValueError as error:
            pytest.fail(
                f"tokens {start} … {stop - 1}, at {start}, were refused: {error}. Hand the offset to `begin` as "
                "it came; and layer i fills cache i, with every token once"
            )
    return np.concatenate(outputs, axis=1)


def text_and_logits(b, rng, name: str, rows: int = 2, tokens: int = 29) -> tuple[np.ndarray, np.ndarray]:
    """A random text, and the logits of Week 1's model, which computes all of it at once."""
    ids = rng.integers(0, CASES[name].config.vocab_size, size=(rows, tokens))
    model = b.Qwen3ModelWeek1(random_checkpoint(b, CASES[name]))
    return ids, b.numpy(model(b.array(ids)))


@pytest.mark.task("2.1.6")
@pytest.mark.parametrize("name", CASE_NAMES)
def test_model_equals_transformers(b, name):
    """Token by token, the logits equal transformers' Qwen3 over the whole text: tied and untied head."""
    stored, model = golden(name), model_of(b, name)
    actual = logits_of(b, model, stored["inputs"], (1,) * CASES[name].tokens)
    idea = "all layers in order, each with its own cache, then the last norm and the model's head"
    assert_close(actual, stored["logits"], atol=1e-4, idea=idea)


@pytest.mark.task("2.1.6")
@pytest.mark.parametrize(
    ("name", "pieces"), [(CASE_NAMES[i % 3], cut) for i, cut in enumerate(CUTS.values())], ids=CUTS
)
def test_model_equals_the_full_recompute(b, rng, name, pieces):
    """The prompt at once or in pieces, then token by token: the logits of Week 1's model, within 1e-4 in float32."""
    ids, expected = text_and_logits(b, rng, name)
    actual = logits_of(b, model_of(b, name), ids, pieces)
    idea = f"two rows in pieces of {pieces[:6]}: what was computed before is read from the caches, not lost"
    assert_close(actual, expected, atol=1e-4, idea=idea)


@pytest.mark.task("2.1.6")
@pytest.mark.parametrize("form", ["number", "one a row", "positions", "positions of each row"])
def test_model_takes_the_offset_in_every_form(b, rng, form):
    """The offset is a number, a list of one a row, or the positions themselves in an array, (L,) or (B, L)."""
    ids, expected = text_and_logits(b, rng, "untied-3", tokens=12)
    model = model_of(b, "untied-3")
    caches = model.create_kv_cache()
    for start, stop in spans((5, 1, 1, 5)):
        positions = np.arange(start, stop)
        offset = {
            "number": start,
            "one a row": [start, start],
            "positions": b.array(positions),
            "positions of each row": b.array(np.tile(positions, (2, 1))),
        }[form]
        actual = b.numpy(model(b.array(ids[:, start:stop]), offset, caches))
        idea = f"the offset as {form}: hand it to `begin`, which knows every form"
        assert_close(actual, expected[:, start:stop], atol=1e-4, idea=idea)


@pytest.mark.task("2.1.6")
@pytest.mark.parametrize("keep", [None, 1, 3, 0, "array"])
def test_model_scores_the_tokens_that_were_asked_for(b, rng, keep):
    """logits_to_keep: all, so many last ones, none, or those at given places; the caches hold all tokens anyway."""
    ids, expected = text_and_logits(b, rng, "tied-1", tokens=9)
    model, places = model_of(b, "tied-1"), [0, 4, 2]
    caches = model.create_kv_cache()
    wanted = {None: expected[:, :6], "array": expected[:, places]}
    wanted = wanted[keep] if keep in wanted else expected[:, 6 - keep : 6]
    kept = b.array(places) if keep == "array" else keep
    actual = b.numpy(model(b.array(ids[:, :6]), 0, caches, logits_to_keep=kept))
    idea = f"of 6 tokens, logits_to_keep={places if keep == 'array' else keep} asks for {wanted.shape[1]}"
    assert_close(actual, wanted, atol=1e-4, idea=idea)
    rest = b.numpy(model(b.array(ids[:, 6:]), 6, caches))
    idea = "tokens whose logits nobody wants are in the caches all the same"
    assert_close(rest, expected[:, 6:], atol=1e-4, idea=idea)


@pytest.mark.task("2.1.6")
def test_model_drops_tokens_before_the_head(b, rng):
    """With a wide vocabulary the logits of all tokens are the largest array of a step; one row of them is small."""
    case = small_model(3, hidden_size=8, num_hidden_layers=1, intermediate_size=8, vocab_size=8000)
    model = b.Qwen3ModelWeek2(random_checkpoint(b, case))
    ids = b.array(rng.integers(0, 8000, size=(1, 60)))
    peak = b.peak_bytes(lambda: model(ids, 0, model.create_kv_cache(60), logits_to_keep=1))
    logits = 60 * 8000 * 4
    assert peak < logits / 2, (
        f"the step held {peak:,} bytes, the logits of all 60 tokens are {logits:,}: drop tokens before the head"
    )


@pytest.mark.task("2.1.6")
@pytest.mark.parametrize("keep", [-1, 4, 100])
def test_model_refuses_to_score_tokens_that_are_not_there(b, keep):
    """Of 3 new tokens 0 to 3 can be scored. Asking for 4 must not give some other number without a word."""
    model = model_of(b, "tied-1")
    with pytest.raises(ValueError, match=f"logits_to_keep is {keep}, of 3 new tokens"):
        model(b.array([[1, 2, 3]]), 0, model.create_kv_cache(), logits_to_keep=keep)


@pytest.mark.task("2.1.6")
@pytest.mark.parametrize("count", [0, 1, 2, 4, 6])
def test_model_refuses_a_wrong_number_of_caches(b, count):
    """3 layers need 3 caches: with fewer or more the model raises ValueError, names both, and fills none."""
    model = model_of(b, "untied-3")
    caches = (model.create_kv_cache() + model.create_kv_cache())[:count]
    with pytest.raises(ValueError, match=f"{count} caches for 3 layers"):
        model(b.array([[1, 2]]), 0, caches)
    assert [cache.offset for cache in caches] == [0] * count, "no cache may be filled by a step that failed"


@pytest.mark.task("2.1.6")
@pytest.mark.parametrize("offset", [0, 4, 6, [5, 4], [4, 4], [0, 5], [5], [5, 5, 5]])
def test_model_refuses_an_offset_that_its_cache_contradicts(b, rng, offset):
    """The caches hold 5 tokens of two rows, so the next one stands at 5. Anything else is a ValueError, and no step."""
    ids, expected = text_and_logits(b, rng, "untied-3", tokens=6)
    model = model_of(b, "untied-3")
    caches = model.create_kv_cache()
    model(b.array(ids[:, :5]), 0, caches)
    with pytest.raises(ValueError, match=r"hold \[5, 5"):
        model(b.array(ids[:, 5:]), offset, caches)
    assert [cache.offset for cache in caches] == [5] * 3, "a step that failed changes no cache"
    actual = b.numpy(model(b.array(ids[:, 5:]), 5, caches))
    assert_close(
        actual, expected[:, 5:], atol=1e-4, idea="after the error the right offset goes on as if nothing was"
    )


@pytest.mark.task("2.1.6")
@pytest.mark.parametrize("offsets", [[0, 0], [3, 3], [4, 0]])
def test_model_refuses_an_offset_that_a_batch_contradicts(b, offsets):
    """The rows of a batch are at places of their own: row 0 holds 3 tokens, row 1 is idle and stands at 0."""
    model = model_of(b, "tied-1")
    batch = b.create_batch_cache(model, 2, 9)
    for cache in batch:
        cache.offsets, cache.active = [3, 0], [True, False]
    with pytest.raises(ValueError, match=r"hold \[3, 0\]"):
        model(b.array([[1], [2]]), offsets, batch)


@pytest.mark.task("2.1.6")
def test_model_makes_as_much_room_as_was_asked_for(b):
    """create_kv_cache(7): 7 tokens fit into every layer. One more is a ValueError with both numbers, and no step."""
    model = model_of(b, "untied-3")
    for pieces in ((7,), (5, 2)):
        caches = model.create_kv_cache(7)
        assert len(caches) == 3, f"one cache for each of 3 layers, not {len(caches)}"
        for start, stop in spans(pieces):
            model(b.array(np.ones((1, stop - start), int)), start, caches)
        with pytest.raises(ValueError, match=r"7 \+ 1 tokens do not fit: this cache holds 7"):
            model(b.array([[1]]), 7, caches)
        assert [cache.offset for cache in caches] == [7] * 3, "a step that does not fit changes no cache"


@pytest.mark.task("2.1.6")
@pytest.mark.parametrize("back", [1, 4, 9])
def test_model_goes_on_after_a_rewind(b, rng, back):
    """Tokens taken back and replaced by others: as if the text had been the other one from the start."""
    ids, expected = text_and_logits(b, rng, "tied-8", tokens=14)
    model, wrong = model_of(b, "tied-8"), (ids + 1) % 67
    caches = model.create_kv_cache(20)
    start = 11 - back
    logits_of(b, model, np.concatenate([ids[:, :start], wrong[:, start:11]], axis=1), (9, 1, 1), caches)
    for cache in caches:
        cache.rewind(back)
    assert [cache.offset for cache in caches] == [start] * 2, "each layer has a cache, and each is filled"
    outputs = [
        b.numpy(model(b.array(ids[:, at:stop]), at, caches))
        for at, stop in ((start, start + 1), (start + 1, 13), (13, 14))
    ]
    idea = f"{back} of 11 tokens were taken back: nothing of them may be seen"
    assert_close(np.concatenate(outputs, axis=1), expected[:, start:], atol=1e-4, idea=idea)


@pytest.mark.task("2.1.6")
def test_model_takes_a_mask_of_the_callers_own(b, rng):
    """A mask array is used as it is: what it hides, no layer sees."""
    ids, model = rng.integers(0, 41, size=(1, 5)), model_of(b, "tied-1")
    other = ids.copy()
    other[:, 1] = (other[:, 1] + 1) % 41
    hidden = causal64(5, 5)
    hidden[2:, 1] = -np.inf
    mask = b.array(hidden)
    one, two = (
        b.numpy(model(b.array(text), 0, model.create_kv_cache(5), mask=mask)) for text in (ids, other)
    )
    idea = "token 1 is hidden from the tokens after it: another one in its place must change nothing for them"
    assert_close(two[:, 2:], one[:, 2:], idea=idea)
    assert np.abs(two[:, 1] - one[:, 1]).max() > 1e-2, "token 1 sees itself"


FAR_QWEN = small_model(
    5, max_position_embeddings=30_100, sliding_window=7, layer_types=("full_attention", "sliding_attention")
)


def masks_of_step(b, dtype: str, positions: np.ndarray, fill, offset):
    """Both masks that the layers get, the plain one and the window's, from caches that `fill` has filled."""
    model, steps = b.Qwen3ModelWeek2(random_checkpoint(b, FAR_QWEN, dtype)), []
    caches = fill(model)
    model.layers = [lambda x, step, cache: steps.append(step) or x] * len(model.layers)
    model(b.array(np.zeros(np.atleast_2d(positions).shape, int)), offset, caches)
    assert len(steps) == 2 and steps[0] is steps[1], "all layers share one step, made once"
    return steps[0].mask, steps[0].window_mask


@pytest.mark.task("2.1.6")
@pytest.mark.parametrize("dtype", SHORT_TYPES)
@pytest.mark.parametrize("start", FAR_STARTS)
def test_masks_of_a_step_are_exact_far_into_a_text(b, start, dtype):
    """13 tokens of one request behind 250 and more: all keys up to their own, and through a window the last 7."""

    def fill(model):
        caches = model.create_kv_cache()
        for cache in caches:
            cache.offset = start
        return caches

    positions = np.arange(start, start + MANY)
    mask, window = masks_of_step(b, dtype, positions, fill, start)
    S = window.shape[-1]
    idea = f"{MANY} {dtype} tokens after {start}"
    assert_close(visible(b, mask, MANY, S), visible_keys(positions, S), idea=idea)
    assert_shows(b.numpy(window), positions, f"{idea}, through a window of 7", window=7)


@pytest.mark.task("2.1.6")
@pytest.mark.parametrize("dtype", SHORT_TYPES)
@pytest.mark.parametrize("start", FAR_STARTS)
def test_masks_of_a_batch_are_exact_far_into_a_text(b, start, dtype):
    """Two rows, one of them far into its text: the mask and the window of each are its own."""

    def fill(model):
        caches = b.create_batch_cache(model, 2, 30_100)
        for cache in caches:
            cache.offsets, cache.active = [start, 3], [True, True]
        return caches

    positions = np.array([[start], [3]]) + np.arange(MANY)
    masks = masks_of_step(b, dtype, positions, fill, b.array(positions))
    for mask, width in zip(masks, (None, 7), strict=True):
        idea = f"rows at {start} and 3 in {dtype}, window {width}"
        assert_shows(b.numpy(mask), positions[:, None], idea, window=width)


@pytest.mark.task("2.1.6")
def test_model_in_bf16_stays_bf16(b):
    """bf16 weights give bf16 logits, near the float32 ones."""
    stored, model = golden("untied-3"), model_of(b, "untied-3", "bfloat16")
    caches = model.create_kv_cache()
    for start, stop in ((0, 10), (10, 11)):
        logits = model(b.array(stored["inputs"][:, start:stop]), start, caches)
        assert logits.dtype == b.dtype("bfloat16"), f"bf16 weights gave {logits.dtype} logits"
        idea = "bf16 logits are near the float32 ones"
        assert_close(b.numpy(logits), stored["logits"][:, start:stop], atol=0.15, idea=idea)


VOCAB = 260


class ScriptedCache:
    """Counts tokens and says whether it was released."""

    def __init__(self, max_seq_len: int | None):
        self.max_seq_len, self.offset, self.released = max_seq_len, 0, False

    def rewind(self, n: int) -> None:
        self.offset -= n

    def materialize(self) -> None:
        pass

    def release(self) -> None:
        self.offset, self.released = 0, True


class ScriptedModel:
    """Prefers `script[n]` in call n, behind the last token; an entry that is an exception is raised. It has 2 layers.

    It remembers what it was given: in `calls` (offset, ids) of each call, in `caches` those of each text, in `scored`
    how many tokens each call wanted logits of.
    """

    def __init__(self, b, script: list):
        self.b, self.script, self.calls, self.caches, self.scored = b, script, [], [], []

    def create_kv_cache(self, max_seq_len: int | None = None) -> list[ScriptedCache]:
        self.caches.append([ScriptedCache(max_seq_len) for _ in range(2)])
        return self.caches[-1]

    def __call__(self, inputs, offset, cache, logits_to_keep=None, mask="causal"):
        ids = self.b.numpy(inputs)
        assert ids.ndim == 2 and len(ids) == 1, f"the model takes ids of shape (1, L), not {ids.shape}"
        assert ids.dtype.kind in "iu", f"token ids are integers, not {ids.dtype}"
        assert cache is self.caches[-1] or list(cache) == self.caches[-1], "one text has one list of caches"
        offset = int(offset if isinstance(offset, int) else np.ravel(self._plain(offset))[0])
        self.calls.append((offset, ids[0].tolist()))
        self._fill(cache, offset, ids.shape[1])
        assert len(self.calls) <= len(self.script), "the model was called again after the text had ended"
        wanted = self.script[len(self.calls) - 1]
        if isinstance(wanted, BaseException):
            raise wanted
        logits = np.zeros((1, ids.shape[1], VOCAB))
        logits[:, :-1, (wanted + 1) % VOCAB] = 9
        logits[:, -1, wanted] = 5
        kept = ids.shape[1] if logits_to_keep is None else logits_to_keep
        self.scored.append(kept if isinstance(kept, int) else len(self.b.numpy(kept)))
        return self.b.array(logits[:, ids.shape[1] - kept :] if isinstance(kept, int) else logits[:, -1:])

    def _plain(self, offset):
        return offset if isinstance(offset, list | tuple) else self.b.numpy(offset)

    @staticmethod
    def _fill(cache, offset: int, L: int) -> None:
        for layer in cache:
            assert not layer.released, "the caches were released before the text had ended"
            assert offset == layer.offset, (
                f"the caches hold {layer.offset} tokens, and the call puts the new ones at {offset}"
            )
            layer.offset += L
            assert layer.max_seq_len is None or layer.offset <= layer.max_seq_len, (
                f"a cache for {layer.max_seq_len} tokens was to hold {layer.offset}: make room for prompt and answer"
            )

    def assert_released(self) -> None:
        held = [layer for caches in self.caches for layer in caches if not layer.released]
        assert not held, f"{len(held)} of the model's 2 caches were never released"


def generate(b, script: list, prompt: str = "Hi", **options):
    """(text, the model, the pieces)."""
    model, pieces = ScriptedModel(b, script), []
    text = b.simple_generate_with_kv_cache(model, ByteTokenizer(), prompt, on_text=pieces.append, **options)
    return text, model, pieces


@pytest.mark.task("2.1.7")
@pytest.mark.parametrize("prompt", ["H", "Hi", "a longer one"])
def test_generate_sends_the_prompt_once_and_then_one_token(b, prompt):
    """The first call has the whole prompt at offset 0, each later one the new token alone, where it stands."""
    text, model, pieces = generate(b, [*b"you", END], prompt)
    n = len(prompt)
    expected = [(0, [*prompt.encode()]), (n, [ord("y")]), (n + 1, [ord("o")]), (n + 2, [ord("u")])]
    assert model.calls == expected, f"(offset, ids) of the calls must be {expected}: {model.calls}"
    assert (text, pieces) == ("you", ["y", "o", "u"]), f"the text is what was generated: {text!r}, {pieces}"


@pytest.mark.task("2.1.7")
def test_generate_asks_for_the_logits_of_one_token(b):
    """Only the last token's logits choose the next one: no call scores a whole prompt, the largest product of all."""
    _, model, _ = generate(b, [*b"you", END], "a longer prompt")
    assert model.scored == [1] * 4, f"logits_to_keep=1 in every call; the model scored {model.scored} tokens"


@pytest.mark.task("2.1.7")
@pytest.mark.parametrize(("prompt", "limit"), [("Hi", 3), ("a longer prompt", 1), ("Hi", 900)])
def test_generate_makes_room_for_the_prompt_and_the_answer(b, prompt, limit):
    """Memory for prompt and answer, and not for the model's whole context: a step of 256 more at most."""
    _, model, _ = generate(b, [*b"ok", END][-limit:], prompt, max_tokens=limit)
    needed, rooms = len(prompt) + limit, {cache.max_seq_len for caches in model.caches for cache in caches}
    assert all(room is not None and needed - 1 <= room < needed + 256 for room in rooms), (
        f"{len(prompt)} tokens of prompt and at most {limit} of answer: create_kv_cache({needed}), not {rooms}"
    )


@pytest.mark.task("2.1.7")
@pytest.mark.parametrize("end", [END, OTHER_END])
def test_generate_stops_at_every_end_token(b, end):
    """Any end token ends the text; the model is not called for it, and the caches are released."""
    text, model, _ = generate(b, [*b"ok", end, *b"never"], max_tokens=6)
    assert text == "ok", f"id {end} is one of eos_token_ids and ends the text: {text!r}"
    assert len(model.calls) == 3, f"the end token comes from call 3; there were {len(model.calls)}"
    model.assert_released()


@pytest.mark.task("2.1.7")
@pytest.mark.parametrize("limit", [1, 2, 5])
def test_generate_stops_at_the_limit(b, limit):
    """max_tokens new tokens take so many calls; the last token needs none, and the caches are released."""
    text, model, _ = generate(b, [*b"abcdefgh"], "a longer prompt", max_tokens=limit)
    assert text == "abcdefgh"[:limit], f"max_tokens={limit} must give {limit} new tokens: {text!r}"
    assert len(model.calls) == limit, f"{limit} tokens take {limit} calls, not {len(model.calls)}"
    model.assert_released()


@pytest.mark.task("2.1.7")
def test_generate_counts_from_the_default_limit(b):
    """Without max_tokens a model that never ends is stopped after 256 tokens."""
    text, model, _ = generate(b, [*b"x"] * 300)
    assert text == "x" * 256, f"the default limit is 256 tokens, not {len(text)}"
    model.assert_released()


@pytest.mark.task("2.1.7")
@pytest.mark.parametrize("error", [ValueError("broken"), KeyboardInterrupt()], ids=["error", "Ctrl-C"])
@pytest.mark.parametrize("where", ["model, prompt", "model, later", "sampler", "on_text"])
def test_generate_releases_the_caches_on_every_way_out(b, error, where):
    """An exception passes through, also the one that Ctrl-C raises; before it does, the caches are released."""
    script = {"model, prompt": [error], "model, later": [*b"ok", error]}.get(where, [*b"okay"])
    model = ScriptedModel(b, script)

    def fails(_):
        raise error

    options = {"sampler": fails} if where == "sampler" else {"on_text": fails} if where == "on_text" else {}
    with pytest.raises(type(error)):
        b.simple_generate_with_kv_cache(model, ByteTokenizer(), "Hi", **options)
    assert model.calls, "the model was never called"
    model.assert_released()


@pytest.mark.task("2.1.7")
def test_generate_samples_every_token(b):
    """The sampler sees (1, V) logits and chooses each token; the next call gets its choice."""
    choices, shapes = iter([*b"xyz", END]), []

    def sampler(logits):
        shapes.append(tuple(logits.shape))
        return b.array([next(choices)])

    text, model, _ = generate(b, [*b"abcd"], sampler=sampler)
    assert text == "xyz", f"the sampler chose x, y, z, the model alone a, b, c: {text!r}"
    assert shapes == [(1, VOCAB)] * 4, f"the sampler takes the logits of one token, (1, V): {shapes}"
    assert [ids for _, ids in model.calls[1:]] == [[ord(c)] for c in "xyz"], "what was chosen is sent next"


@pytest.mark.task("2.1.7")
def test_generate_never_splits_a_character(b):
    """Half a character gives an empty piece; cut in the middle, the text ends with what finish() makes of it."""
    text, _, pieces = generate(b, [*"né😀".encode()], max_tokens=5)
    assert (text, pieces) == ("né\ufffd", ["n", "", "é", "", "", "\ufffd"]), f"{text!r} in pieces {pieces}"


@pytest.mark.task("2.1.7")
def test_generate_starts_every_text_afresh(b):
    """Two texts, two sets of caches: the second does not know of the first."""
    model = ScriptedModel(b, [*b"a", END, *b"b", END])
    texts = [b.simple_generate_with_kv_cache(model, ByteTokenizer(), "Hi") for _ in range(2)]
    assert (texts, len(model.caches)) == (["a", "b"], 2), "every text needs caches of its own"
    assert model.calls[2] == (0, [*b"Hi"]), f"the second text starts with its prompt at 0: {model.calls[2]}"
    model.assert_released()


@pytest.mark.task("2.1.7")
def test_generate_refuses_what_has_no_meaning(b):
    """An empty prompt and a limit below 1 are errors, before the model runs; no cache is left behind."""
    for prompt, limit in (("", 5), ("Hi", 0), ("Hi", -1)):
        model = ScriptedModel(b, [])
        with pytest.raises(ValueError, match="prompt is empty" if not prompt else f"max_tokens is {limit}"):
            b.simple_generate_with_kv_cache(model, ByteTokenizer(), prompt, max_tokens=limit)
        assert not model.calls, "the model ran although the request has no meaning"
        model.assert_released()


@pytest.mark.task("2.1.7")
def test_generate_says_what_the_loop_without_a_cache_says(b):
    """A random model, Week 1's and Week 2's: the same text. The caches, real ones now, are empty afterwards."""
    checkpoint = random_checkpoint(b, small_model(21, vocab_size=VOCAB, tie_word_embeddings=False))
    model, made = b.Qwen3ModelWeek2(checkpoint), []
    create = model.create_kv_cache

    def create_and_remember(*args, **options):
        made.append(create(*args, **options))
        return made[-1]

    model.create_kv_cache = create_and_remember
    for prompt in ("a", "Once upon a time"):
        expected = b.simple_generate(b.Qwen3ModelWeek1(checkpoint), ByteTokenizer(), prompt, max_tokens=24)
        text = b.simple_generate_with_kv_cache(model, ByteTokenizer(), prompt, max_tokens=24)
        assert text == expected, f"with the cache the model says {text!r}, without {expected!r}"
    assert made and all(cache.offset == 0 for caches in made for cache in caches), "release every cache"
