"""Week 2 Day 6: continuous batching. The policy runs a scripted model; the caches a small random Qwen3 in float32.

Oracles: exact traces of the script; NumPy in float64; Week 1's model, which computes each text alone and as a whole.
"""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from support.close import assert_close
from support.fake_model import END, OTHER_END, ByteTokenizer, FakeModel
from support.masks import FAR_STARTS, MANY, SHORT_TYPES, assert_shows
from support.qwen3_layer import attention64
from tiny_llm_course.grading.small_models import random_checkpoint, small_model

HKV, D = 2, 6
QWEN = small_model(
    26, num_attention_heads=4, num_key_value_heads=HKV, head_dim=D, vocab_size=61, max_position_embeddings=400
)


# The cache of a batch, alone.


class Rows:
    """A batch cache and, beside it in NumPy, the keys and values that each slot should hold: (Hkv, tokens, D)."""

    def __init__(self, b, rng, slots: int, max_seq_len: int = 300):
        self.b, self.rng = b, rng
        self.cache = b.BatchingKvCache(slots, max_seq_len)
        self.held: dict[int, np.ndarray] = {}

    def random(self, *shape: int) -> np.ndarray:
        return self.rng.normal(size=shape).astype(np.float32)

    def in_mid_life(self, **lengths: int) -> "Rows":
        """Puts the cache into the state of running requests, slot2=5 and so on; everything else is garbage."""
        shape = (self.cache.max_active_requests, HKV, 512, D)
        arrays = 1e4 * self.random(2, *shape)
        for name, length in lengths.items():
            slot = int(name.removeprefix("slot"))
            self.held[slot] = self.random(2, HKV, length, D)
            arrays[:, slot, :, :length] = self.held[slot]
            self.cache.offsets[slot], self.cache.active[slot] = length, True
        self.cache.keys, self.cache.values = map(self.b.array, arrays)
        return self

    def prefilled(self, length: int) -> tuple:
        """A request's own cache with so many tokens, and what they are."""
        own, tokens = self.b.TinyKvFullCache(300), self.random(2, 1, HKV, length, D)
        own.update_and_fetch(*map(self.b.array, tokens), length, "causal")
        return own, tokens[:, 0]

    def add(self, slot: int, length: int) -> None:
        own, self.held[slot] = self.prefilled(length)
        self.cache.add_request(own, slot)
        own.release()

    def remove(self, slot: int) -> None:
        self.cache.remove_request(slot)
        del self.held[slot]

    def update(self, B: int, L: int = 1, **options):
        """One step: L new tokens a row. What comes back, in NumPy."""
        new = self.random(2, B, HKV, L, D)
        for slot in self.held:
            self.held[slot] = np.concatenate([self.held[slot], new[:, slot]], axis=2)
        key, value, length, mask = self.cache.update_and_fetch(*map(self.b.array, new), **options)
        return self.b.numpy(key), self.b.numpy(value), length, self.b.numpy(mask)

    def check(self, idea: str, B: int, L: int = 1) -> None:
        """One step, and attention over what comes back: active rows see their own tokens, idle rows stay finite."""
        query = self.random(B, 2 * HKV, L, D)
        key, value, _, mask = self.update(B, L)
        seen = self.b.numpy(
            self.b.scaled_dot_product_attention_grouped(
                *map(self.b.array, (query, key, value)), mask=self.b.array(mask)
            )
        )
        assert np.isfinite(seen).all(), "a row holds NaN or infinity: an idle row must see one key, its first"
        for slot, (keys, values) in self.held.items():
            S = keys.shape[1]
            causal = np.where(np.arange(S) <= np.arange(S - L, S)[:, None], 0.0, -np.inf)
            alone = attention64(query[slot].astype(float), keys, values, mask=causal)
            assert_close(seen[slot], alone, atol=1e-4, idea=f"slot {slot} with {S} tokens: {idea}")


@pytest.mark.task("2.6.1")
@pytest.mark.parametrize("L", [1, 3])
def test_update_writes_every_row_at_its_own_position(b, rng, L):
    """Rows of 5, 1 and 9 tokens get L more; each row's new keys and values stand right behind its own old ones."""
    rows = Rows(b, rng, 3).in_mid_life(slot0=5, slot1=1, slot2=9)
    key, value, *_ = rows.update(3, L)
    for slot, (keys, values) in rows.held.items():
        S = keys.shape[1]
        idea = f"slot {slot} held {S - L} tokens: {L} more belong to positions {S - L} to {S - 1} of this row"
        assert_close(key[slot, :, :S], keys, atol=0, rtol=0, idea=f"keys of {idea}")
        assert_close(value[slot, :, :S], values, atol=0, rtol=0, idea=f"values of {idea}")


@pytest.mark.task("2.6.1")
@pytest.mark.parametrize("L", [1, 3])
def test_update_counts_active_slots_only(b, rng, L):
    """The offsets of running requests grow by L. An idle slot stays at 0 and does not decide the length."""
    rows = Rows(b, rng, 4).in_mid_life(slot1=5, slot3=2)
    *_, length, _ = rows.update(4, L)
    assert rows.cache.offsets == [0, 5 + L, 0, 2 + L], (
        f"slots 1 and 3 run and get {L} more tokens; idle slots stay at 0: {rows.cache.offsets}"
    )
    assert length == 5 + L, f"the longest row has {5 + L} tokens now, not {length}"


@pytest.mark.task("2.6.1")
def test_update_hands_out_as_many_keys_as_the_mask_hides(b, rng):
    """key and value are (B, Hkv, S, D), the mask (B, 1, L, S), with S = num_keys(L), as it is before the new tokens."""
    rows = Rows(b, rng, 3).in_mid_life(slot0=4, slot2=7)
    S = rows.cache.num_keys(2)
    key, value, _, mask = rows.update(3, 2)
    assert key.shape == value.shape == (3, HKV, S, D), (
        f"S is num_keys(2) = {S}, not {key.shape} and {value.shape}"
    )
    assert mask.shape == (3, 1, 2, S), f"one mask a row, for 2 queries and {S} keys: {mask.shape}"


@pytest.mark.task("2.6.1")
@pytest.mark.parametrize("L", [1, 3])
def test_rows_attend_to_their_own_tokens_alone(b, rng, L):
    """Behind each row lies garbage. With the mask, attention equals that of each row alone."""
    rows = Rows(b, rng, 4).in_mid_life(slot0=3, slot2=8, slot3=1)
    for _ in range(3):
        rows.check("it saw garbage, or not its own tokens", 4, L)


@pytest.mark.task("2.6.1")
def test_rows_may_cross_a_multiple_of_256(b, rng):
    """A row of 254 tokens grows past 256 while a short one runs beside it."""
    rows = Rows(b, rng, 2).in_mid_life(slot0=254, slot1=2)
    for _ in range(4):
        rows.check("wrong at a multiple of 256", 2)


@pytest.mark.task("2.6.1")
def test_update_may_leave_out_the_last_slots(b, rng):
    """A batch of 2 rows for 4 slots, as long as the slots behind them are idle."""
    rows = Rows(b, rng, 4).in_mid_life(slot0=3, slot1=6)
    rows.check("B is the number of rows given, not of slots", 2)
    assert rows.cache.offsets == [4, 7, 0, 0], f"offsets belong to slots: {rows.cache.offsets}"


@pytest.mark.task("2.6.1")
def test_update_takes_positions_and_a_mask(b, rng):
    """The model derives both once for all layers. Positions given are where the tokens go; a mask given comes back."""
    rows = Rows(b, rng, 3).in_mid_life(slot0=2, slot2=6)
    positions = b.array(np.array([[2], [0], [6]]))
    mask = rng.normal(size=(3, 1, 1, rows.cache.num_keys(1)))
    key, _, _, returned = rows.update(3, mask=b.array(mask), positions=positions)
    for slot, (keys, _) in rows.held.items():
        assert_close(
            key[slot, :, : keys.shape[1]], keys, idea=f"slot {slot}: `positions` say where tokens go"
        )
    assert_close(returned, mask, atol=1e-6, idea="a mask that is given passes through")


@pytest.mark.task("2.6.1")
@pytest.mark.parametrize("dtype", SHORT_TYPES)
@pytest.mark.parametrize("start", FAR_STARTS)
def test_the_mask_of_a_batch_is_exact_far_into_a_text(b, start, dtype):
    """Rows at 250 and more and at 3, with 13 more tokens each, in bf16 and float16, which have no 257 and no 2,049."""
    cache, capacity = b.BatchingKvCache(2, start + MANY), -(-(start + MANY) // 256) * 256
    cache.keys, cache.values = (b.array(np.zeros((2, 1, capacity, 2)), dtype) for _ in range(2))
    cache.offsets, cache.active = [start, 3], [True, True]
    new = [b.array(np.zeros((2, 1, MANY, 2)), dtype) for _ in range(2)]
    mask = b.numpy(cache.update_and_fetch(*new)[3])
    positions = np.array([[start], [3]]) + np.arange(MANY)
    idea = f"rows at {start} and 3 in {dtype}: positions are integers, and only the finished mask is {dtype}"
    assert_shows(mask, positions[:, None], idea)


@pytest.mark.task("2.6.2")
def test_add_copies_keys_and_values_into_the_slot(b, rng):
    """Two requests of 5 and 3 tokens into slots 2 and 0: each in its row, with its length; the rest is zeros."""
    rows = Rows(b, rng, 3)
    rows.add(2, 5)
    rows.add(0, 3)
    assert rows.cache.offsets == [3, 0, 5], f"a slot's offset is its request's: {rows.cache.offsets}"
    assert rows.cache.active == [True, False, True], f"slots 2 and 0 are in use now: {rows.cache.active}"
    for name, index in (("keys", 0), ("values", 1)):
        array = b.numpy(getattr(rows.cache, name))
        for slot, held in rows.held.items():
            n = held.shape[2]
            assert_close(array[slot, :, :n], held[index], atol=0, rtol=0, idea=f"the {name} of slot {slot}")
            assert not array[slot, :, n:].any(), f"{name} of slot {slot}: after its tokens are zeros"
        assert not array[1].any(), f"slot 1 is free: its {name} are zeros until something is written"


@pytest.mark.task("2.6.2")
def test_add_makes_room_for_a_whole_slot(b, rng):
    """There is room for max_seq_len tokens in every slot from the first request on, in the type of its keys."""
    for max_seq_len, expected in ((40, 40), (None, 300)):
        rows = Rows(b, rng, 2, max_seq_len)
        rows.add(1, 3)
        B, _, capacity, _ = rows.cache.keys.shape
        assert rows.cache.max_seq_len == expected, f"max_seq_len={max_seq_len}: {rows.cache.max_seq_len}"
        assert (B, capacity >= expected) == (2, True), f"{(B, capacity)}: 2 slots of {expected} tokens"
    own = b.TinyKvFullCache(9)
    own.update_and_fetch(*(b.array(np.ones((1, HKV, 2, D)), "bfloat16") for _ in range(2)), 2, "causal")
    cache = b.BatchingKvCache(2, 9)
    cache.add_request(own, 0)
    assert cache.keys.dtype == cache.values.dtype == b.dtype("bfloat16"), "keys and values keep their type"


@pytest.mark.task("2.6.2")
@pytest.mark.parametrize(("slot", "own"), [(40, 1000), (40, 40), (300, 1000), (None, 300), (300, None)])
def test_slots_are_as_long_as_was_asked_for(b, rng, slot, own):
    """Every slot costs memory: as many positions as the batch asked for, else as the first request's cache has."""
    cache, prefilled, asked = b.BatchingKvCache(2, slot), b.TinyKvFullCache(own), slot or own
    prefilled.update_and_fetch(*map(b.array, rng.normal(size=(2, 1, HKV, 3, D))))
    cache.add_request(prefilled, 0)
    for array in (cache.keys, cache.values):
        assert asked <= array.shape[2] < asked + 256, (
            f"{array.shape[2]} positions in a slot of {asked} tokens (the request's own cache: {own}): round {asked} up"
        )


@pytest.mark.task("2.6.2")
def test_a_slot_takes_a_request_that_fills_it(b, rng):
    """A slot of 9 takes 9 tokens and not 10; then it is full, and the next token is a ValueError, not a write."""
    rows = Rows(b, rng, 2, 9)
    try:
        rows.add(1, 9)
    except ValueError as error:
        pytest.fail(f"9 tokens fit a slot of 9: {error}")
    assert rows.cache.offsets == [0, 9], f"9 tokens fit a slot of 9: {rows.cache.offsets}"
    with pytest.raises(ValueError, match="10 tokens do not fit a slot of 9"):
        rows.cache.add_request(rows.prefilled(10)[0], 0)
    with pytest.raises(ValueError, match=r"9 \+ 1 tokens do not fit a slot of 9"):
        rows.update(2)
    assert rows.cache.offsets == [0, 9], f"what was refused changes nothing: {rows.cache.offsets}"


@pytest.mark.task("2.6.2")
@pytest.mark.parametrize("emptied", ["new", "rewound", "released"])
def test_add_refuses_an_empty_cache(b, rng, emptied):
    """A request without a token has no keys and no place in a batch: a ValueError that says so; the slot stays free."""
    rows = Rows(b, rng, 2)
    own = b.TinyKvFullCache(300) if emptied == "new" else rows.prefilled(4)[0]
    if emptied != "new":
        own.rewind(4) if emptied == "rewound" else own.release()
    with pytest.raises(ValueError, match="cache is empty: prefill"):
        rows.cache.add_request(own, 1)
    assert (rows.cache.offsets, rows.cache.active) == ([0, 0], [False, False]), "slot 1 is still free"
    rows.add(1, 2)
    rows.check("the slot that an empty request did not get", 2)


@pytest.mark.task("2.6.2")
def test_add_refuses_a_slot_of_no_length(b, rng):
    """Neither the batch nor the request's cache has a limit: nobody knows how much memory a slot needs."""
    own, cache = b.TinyKvFullCache(), b.BatchingKvCache(2)
    own.update_and_fetch(*map(b.array, rng.normal(size=(2, 1, HKV, 3, D))))
    with pytest.raises(ValueError, match="max_seq_len"):
        cache.add_request(own, 0)
    given = b.BatchingKvCache(2, 9)
    given.add_request(own, 0)
    assert given.offsets == [3, 0], f"with a length from the batch it fits: {given.offsets}"


@pytest.mark.task("2.6.2")
def test_add_copies_so_that_the_request_can_release(b, rng):
    """What was copied does not change with the request's own cache, and has no tokens that it had rewound."""
    rows = Rows(b, rng, 2)
    own, tokens = rows.prefilled(7)
    own.rewind(3)
    rows.cache.add_request(own, 1)
    own.update_and_fetch(*map(b.array, 1e3 * rows.random(2, 1, HKV, 2, D)), 2, "causal")
    assert rows.cache.offsets == [0, 4], f"the request holds 4 tokens after its rewind: {rows.cache.offsets}"
    array = b.numpy(rows.cache.keys)[1, :, :4]
    assert_close(
        array, tokens[0][:, :4], atol=0, rtol=0, idea="the slot must hold a copy of the request's keys"
    )


@pytest.mark.task("2.6.2")
def test_added_rows_attend_as_if_alone(b, rng):
    """Any mix of lengths, idle rows between them, a prompt longer than 256, and one that comes while others run."""
    rows = Rows(b, rng, 5)
    rows.add(0, 4)
    rows.add(3, 271)
    rows.check("a mix of lengths", 4)
    rows.add(1, 1)
    for _ in range(3):
        rows.check("a mix of lengths, after a request was added to running ones", 4)


@pytest.mark.task("2.6.3")
def test_remove_makes_a_slot_idle(b, rng):
    """The slot stands at 0 and is not active. The other slots stay as they are, and the longest one decides."""
    rows = Rows(b, rng, 3).in_mid_life(slot0=3, slot1=270, slot2=5)
    rows.remove(1)
    assert rows.cache.offsets == [3, 0, 5], f"a free slot is at position 0: {rows.cache.offsets}"
    assert rows.cache.active == [True, False, True], f"slot 1 is free: {rows.cache.active}"
    assert rows.cache.num_keys(1) == b.BatchingKvCache(1).num_keys(6), "keys shrink with the longest row"
    rows.check("after its neighbour was removed", 3)
    assert rows.cache.offsets == [4, 0, 6], f"an idle slot is not counted: {rows.cache.offsets}"


@pytest.mark.task("2.6.3")
def test_a_slot_is_used_again(b, rng):
    """A short request follows a long one in the same slot, after idle steps; what is left of the old one is unseen."""
    rows = Rows(b, rng, 2)
    rows.add(0, 6)
    rows.add(1, 90)
    rows.check("two requests", 2)
    rows.remove(1)
    rows.check("the slot beside it is idle", 2)
    rows.add(1, 2)
    for _ in range(3):
        rows.check("the slot held a longer request before", 2)


@pytest.mark.task("2.6.3")
def test_a_request_inherits_no_nan(b):
    """What overflowed in a request is gone with it: the next one in its slot, and the idle row, see numbers."""
    cache, ones, nan = b.BatchingKvCache(2, 400), np.ones((1, 1, 300, 8)), np.full((1, 1, 300, 8), np.nan)

    def own(values: np.ndarray):
        made = b.TinyKvFullCache(400)
        made.update_and_fetch(b.array(values), b.array(values))
        return made

    cache.add_request(own(nan), 0)
    cache.add_request(own(ones), 1)
    cache.remove_request(0)
    for step in range(2):  # idle, then with a short request
        new = b.array(np.ones((2, 1, 1, 8)))
        key, value, _, mask = cache.update_and_fetch(new, new)
        out = b.numpy(b.scaled_dot_product_attention_grouped(new, key, value, mask=mask))
        assert np.isfinite(out).all(), "a NaN of the request before is still in the row"
        if step == 0:
            cache.add_request(own(ones[:, :, :10]), 0)


# One request, with a scripted model.


def request(s, prompt="Hi", answers=(), model: FakeModel | None = None, **options):
    """A request, and the model that it runs on."""
    model = model or FakeModel({prompt: answers} if isinstance(prompt, str) else {})
    return s.Request(model, ByteTokenizer(), prompt, **options), model


def answer(s, tokens, **options):
    """A request that was handed these tokens one by one, as steps would."""
    made, _ = request(s, **options)
    for count, token in enumerate(tokens):
        assert not made.is_done, f"ended with {made.finish_reason!r} before token {count}: {made.text!r}"
        made.decode_done(token, update_offset=count > 0)
    return made


@pytest.mark.task("2.6.4")
@pytest.mark.parametrize("prompt", ["Hi", "a longer prompt, for 38 tokens of bytes"])
def test_prefill_is_one_call_with_the_whole_prompt(s, prompt, monkeypatch):
    """All tokens from offset 0 into the request's own cache, sampled with the request's own parameters."""
    monkeypatch.setattr(s.Request, "decode_done", lambda self, token, update_offset=True: None)
    params = s.SamplingParams(temperature=0.5)
    made, model = request(s, prompt, "ok", sampling=params)
    made.prefill()
    assert len(model.calls) == 1, f"one call for the whole prompt, not {len(model.calls)}: {model.trace}"
    call = model.calls[0]
    assert call.tokens == [*prompt.encode()], f"every token of the prompt: {call.tokens}"
    assert call.offset == 0, f"a prompt starts at offset 0: {call.offset}"
    assert call.sample, "sample=True: the first new token comes with the prompt"
    assert call.sampling == params, f"drawn as the request wants it: {call.sampling}"
    assert all(cache.offset == len(prompt) for cache in made.kv_cache), "through the request's own cache"


@pytest.mark.task("2.6.4")
def test_prefill_counts_the_prompt_and_hands_on_the_first_token(s, monkeypatch):
    """offset is the prompt's length: the new token is in no cache yet, so decode_done must not count it again."""
    seen = []
    monkeypatch.setattr(
        s.Request, "decode_done", lambda self, token, update_offset=True: seen.append((token, update_offset))
    )
    made, _ = request(s, "Hello", "xy")
    assert not made.is_prefill_done, "before its prefill it is not done"
    made.prefill()
    assert made.is_prefill_done, "is_prefill_done says that the prompt is in the cache"
    assert made.offset == 5, f"5 tokens are in the cache, not {made.offset}: the new one was only chosen"
    assert seen == [(ord("x"), False)], f"decode_done gets the first token with update_offset=False: {seen}"


@pytest.mark.task("2.6.5")
def test_decode_done_appends_a_token(s):
    """Each token goes to `tokens` and `text`, and is the next step's input; update_offset counts the one before it."""
    made = answer(s, b"abc")
    assert (made.text, made.tokens) == ("abc", [*b"abc"]), f"the answer grows: {made.text!r}, {made.tokens}"
    assert made.next_token == ord("c"), f"the last token is the next input, not {made.next_token}"
    assert made.offset == 2, f"three tokens chosen, two of them went into a cache: offset is {made.offset}"
    assert not made.is_done, f"nothing has ended it: {made.finish_reason!r}"


@pytest.mark.task("2.6.5")
@pytest.mark.parametrize("end", [END, OTHER_END])
@pytest.mark.parametrize("text", ["", "ok"])
def test_decode_done_stops_at_every_end_token(s, text, end):
    """Any id of eos_token_ids ends the request with "stop", also as the first one; it is no part of the answer."""
    made = answer(s, [*text.encode(), end])
    assert made.finish_reason == "stop", f"id {end} ends the text: {made.finish_reason!r}"
    assert (made.text, made.tokens) == (text, [*text.encode()]), (
        f"an end token is no part of the answer: {made.text!r}, {made.tokens}"
    )


@pytest.mark.task("2.6.5")
@pytest.mark.parametrize(
    ("max_tokens", "max_seq_len", "expected"),
    [(1, None, 1), (3, None, 3), (None, 5, 3), (None, 3, 1), (2, 6, 2), (9, 6, 4)],
)
def test_decode_done_stops_at_a_limit(s, max_tokens, max_seq_len, expected):
    """max_tokens counts new tokens, max_seq_len prompt and answer together; the lower one ends with "length"."""
    made = answer(
        s,
        [*b"abcdefgh"[:expected]],
        max_seq_len=max_seq_len,
        sampling=s.SamplingParams(max_tokens=max_tokens) if max_tokens else None,
    )
    limits = (
        f"max_tokens={max_tokens}, max_seq_len={max_seq_len} and a prompt of 2 allow {expected} new tokens"
    )
    assert made.finish_reason == "length", f"{limits}: it must end there"
    assert made.text == "abcdefgh"[:expected], f"{limits}, and the last belongs to the text: {made.text!r}"


@pytest.mark.task("2.6.5")
def test_decode_done_counts_from_the_models_own_limit(s):
    """Without max_seq_len the model's context ends the answer."""
    model = FakeModel({"Hi": ""}, max_model_len=7)
    made = answer(s, b"abcde", model=model)
    assert made.finish_reason == "length", "a context of 7 tokens holds a prompt of 2 and 5 new ones"


@pytest.mark.task("2.6.5")
@pytest.mark.parametrize(
    ("stop", "tokens", "text"),
    [
        ("end", b"the end", "the "),
        ("end", b"end", ""),
        ("x", b"x", ""),
        (["zz", "ing"], b"string", "str"),
        (["bcd", "c"], b"abc", "ab"),
        ("aab", b"aaab", "a"),
    ],
)
def test_decode_done_stops_at_a_stop_string(s, stop, tokens, text):
    """A stop string may be spread over several tokens, and may be the very first; the text ends before it."""
    made = answer(s, tokens, stop=stop)
    assert made.finish_reason == "stop", f"{tokens!r} holds a stop string of {stop!r}"
    assert made.text == text, f"the text ends before the stop string: {made.text!r}, not {text!r}"


@pytest.mark.task("2.6.5")
def test_decode_done_holds_back_what_may_be_a_stop_string(s):
    """ "en" may become "end", so it is not shown yet; when the text ends for another reason it belongs to it."""
    made = answer(s, b"the en", stop="end")
    assert made.text == "the ", f"'en' may be the beginning of 'end': {made.text!r}"
    made.decode_done(ord("t"))
    assert made.text == "the ent", f"it was not: {made.text!r}"
    cut = answer(s, b"the en", stop="end", sampling=s.SamplingParams(max_tokens=6))
    assert (cut.text, cut.finish_reason) == ("the en", "length"), f"finish delivers the rest: {cut.text!r}"
    ended = answer(s, [*b"the en", END], stop="end")
    assert (ended.text, ended.finish_reason) == ("the en", "stop"), f"finish shows the rest: {ended.text!r}"


@pytest.mark.task("2.6.5")
def test_a_stop_string_at_the_limit_is_a_stop(s):
    """The last token that the limit allows completes the stop string: "stop", for the text is complete."""
    made = answer(s, b"abc", stop="bc", sampling=s.SamplingParams(max_tokens=3))
    assert (made.text, made.finish_reason) == ("a", "stop"), (
        f"the stop string is complete with the last token: {made.text!r}, {made.finish_reason!r}"
    )


@pytest.mark.task("2.6.5")
def test_decode_done_never_splits_a_character(s):
    """A token may be a part of a character; the text grows when it is whole, and a cut one shows as U+FFFD."""
    assert answer(s, "né😀".encode()).text == "né😀", "an id may be half a character: the detokenizer joins"
    assert answer(s, "né😀".encode()[:-2]).text == "né", "half a character is no text yet"
    cut = answer(s, "né😀".encode()[:-2], sampling=s.SamplingParams(max_tokens=5))
    assert cut.text == "né\ufffd", f"finish delivers what the detokenizer holds: {cut.text!r}"


@pytest.mark.task("2.6.5")
def test_a_request_that_ends_releases_its_cache(s):
    """An end token, a limit and a stop string give the request's own caches back."""
    for tokens, options in (
        ([END], {}),
        ([97], {"stop": "a"}),
        ([97], {"sampling": s.SamplingParams(max_tokens=1)}),
    ):
        made, model = request(s, **options)
        made.decode_done(tokens[0], update_offset=False)
        assert made.is_done and not model.unreleased(), f"{made.finish_reason!r} keeps {model.unreleased()}"


@pytest.mark.task("2.6.5")
@pytest.mark.parametrize("token", [ord("b"), END])
def test_decode_done_gives_no_token_to_a_request_that_has_ended(s, token):
    """It was aborted while its step ran: text, tokens, offset and reason stay as they are."""
    made = answer(s, b"a")
    made.finish("abort")
    made.decode_done(token)
    found = (made.text, made.tokens, made.offset, made.finish_reason)
    assert found == ("a", [*b"a"], 0, "abort"), f"an aborted request was given one more token: {found}"


@pytest.mark.task("2.6.5")
@pytest.mark.parametrize(
    ("script", "options", "text", "reason"),
    [
        ("", {}, "", "stop"),
        ("xy", {"stop": "x"}, "", "stop"),
        ("x", {"max_tokens": 1}, "x", "length"),
        ([120, END], {}, "x", None),
    ],
)
def test_prefill_may_end_a_request(s, script, options, text, reason):
    """The first token comes with the prompt, and is treated as every other: an end token, a stop string, the limit."""
    sampling = s.SamplingParams(max_tokens=options.get("max_tokens"))
    made, _ = request(s, "Hi", script, stop=options.get("stop"), sampling=sampling)
    made.prefill()
    assert (made.text, made.finish_reason, made.offset) == (text, reason, 2), (
        f"after prefill: text {made.text!r}, {made.finish_reason!r}, offset {made.offset}"
    )


@pytest.mark.task("2.6.6")
def test_abort_ends_a_request_that_waits(s):
    """Before its prefill: the reason is "abort", there is no text, the cache is given back."""
    made, model = request(s)
    made.abort()
    assert (made.finish_reason, made.text, made.is_done) == ("abort", "", True), f"{made.finish_reason!r}"
    assert not model.unreleased(), f"abort releases the request's caches: {model.unreleased()}"


@pytest.mark.task("2.6.6")
def test_abort_keeps_the_text_so_far(s):
    """All of it: also what was held back as the beginning of a stop string, or of a character."""
    made = answer(s, [*b"the en"], stop="end")
    made.abort()
    assert (made.finish_reason, made.text) == ("abort", "the en"), (
        f"the text so far is 'the en', with what was held back: {made.finish_reason!r}, {made.text!r}"
    )
    half = answer(s, [*b"n", 0xC3])
    half.abort()
    assert half.text == "n\ufffd", f"the detokenizer held half a character: {half.text!r}"


@pytest.mark.task("2.6.6")
def test_abort_after_the_end_changes_nothing(s):
    """A request that has ended keeps its reason and its text, for every reason; aborting twice is aborting once."""
    for made in (
        s.Request(FakeModel({}), ByteTokenizer(), ""),
        answer_of_one(s, END),
        answer_of_one(s, 97),
        request(s)[0],
    ):
        if made.finish_reason is None:
            made.abort()
        before = (made.finish_reason, made.text, made.error)
        made.abort()
        assert (made.finish_reason, made.text, made.error) == before, (
            f"{before} became {made.finish_reason!r}"
        )


def answer_of_one(s, token: int):
    """A request that ended with its first token, without `decode_done` of the solution."""
    made, _ = request(s)
    made.finish("stop" if token == END else "length")
    return made


@pytest.mark.task("2.6.6")
@pytest.mark.parametrize("thread", [False, True], ids=["from the call", "from another thread"])
def test_abort_while_a_whole_prefill_runs(s, thread):
    """The model is writing to the cache: the request ends when the call does. No token, and no cache stays."""
    seen = []

    def during(call: int) -> None:
        abort_from(made, thread)
        seen.append((made.is_done, model.unreleased()))

    made, model = request(s, model=FakeModel({"Hi": "abc"}, during=during))
    made.prefill()
    assert seen == [(False, "2 requests' caches")], (
        f"while the call runs the request is not done, and its cache is there: {seen}"
    )
    assert (made.finish_reason, made.text, made.tokens) == ("abort", "", []), (
        f"aborted while its prefill ran: {made.finish_reason!r}, {made.text!r}; take the token after the call's context"
    )
    assert not model.unreleased(), f"aborted while its prefill ran: {model.unreleased()} not released"


def abort_from(made, thread: bool) -> None:
    """Aborts a request, from this thread or from another one."""
    if not thread:
        made.abort()
        return
    with ThreadPoolExecutor() as other:
        other.submit(made.abort).result()  # raises here what was raised there


@pytest.mark.task("2.6.6")
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_abort_while_a_prefill_runs_that_fails(s, error):
    """The call raises instead of returning: the request is aborted, its cache is gone, and it is no longer marked."""
    model = FakeModel({"Hi": "abc"}, during=lambda call: made.abort(), fails={0: error("no memory")})
    made, _ = request(s, model=model)
    with pytest.raises(error):
        made.prefill()
    assert (made.finish_reason, made.error) == ("abort", None), f"{made.finish_reason!r}, {made.error!r}"
    assert not model.unreleased(), f"{model.unreleased()} not released"


@pytest.mark.task("2.6.4")
@pytest.mark.parametrize(("error", "reason"), [(ValueError, "error"), (KeyboardInterrupt, "abort")])
def test_a_prefill_that_fails_ends_its_request(s, error, reason):
    """Nobody knows how much of the prompt is in the cache. What was raised reaches the caller; the cache is gone."""
    made, model = request(s, model=FakeModel({"Hi": "abc"}, fails={0: error("no memory")}))
    with pytest.raises(error):
        made.prefill()
    assert (made.finish_reason, made.offset, made.is_prefill_done) == (reason, 0, False), (
        f"the call failed: {made.finish_reason!r}, offset {made.offset}, prefill done: {made.is_prefill_done}"
    )
    assert not model.unreleased(), f"the call failed: {model.unreleased()} not released"


# The slots, with a scripted model.


def noted(event) -> tuple:
    """(kind, seconds, request, slot) of an event; of a step (kind, seconds, requests, what it computed)."""
    if event.kind != "step":
        return event.kind, event.time, event.request.prompt_idx, event.slot
    [part] = event.parts
    return event.kind, event.time, [request.prompt_idx for request in part.requests], part.kind


def batch_of(s, answers: dict, size: int = 3, max_seq_len: int = 64, heard=None, **options):
    """(batch, its model, the requests of `answers`, the events so far)."""
    model, events = FakeModel(answers, **options), []

    def on_event(event):
        events.append(noted(event))
        if heard:
            heard(event)

    batch = s.Batch(model, size, max_seq_len, clock=model.clock, on_event=on_event)
    requests = [
        s.Request(model, ByteTokenizer(), prompt, prompt_idx=i, max_seq_len=max_seq_len)
        for i, prompt in enumerate(answers)
    ]
    return batch, model, requests, events


@pytest.mark.task("2.6.7")
def test_prefill_and_place_takes_the_lowest_free_slot(s):
    """The prompt runs through the request's own cache; then every layer is copied into one slot, the lowest free."""
    batch, model, (one, two), events = batch_of(s, {"Hi": "abc", "Hello": "xyz"})
    batch.prefill_and_place(one)
    batch.prefill_and_place(two)
    assert model.trace == ["prompt Hi", "prompt Hello"], f"one step a prompt: {model.trace}"
    assert batch.slots == [one, two, None], "requests take the lowest free slots, in order"
    for number, layer in enumerate(model.batch_caches):
        held = [bytes(row.tokens) if row else None for row in layer.rows]
        assert held == [b"Hi", b"Hello", None], f"layer {number} must hold both prompts: {held}"
    assert all(cache.is_released for cache in model.caches), "its own cache is released after the copy"
    expected = [
        ("prefill", 0, 0, None),
        ("step", 2, [0], "chunk"),
        ("token", 2, 0, None),
        ("prefill", 2, 1, None),
        ("step", 7, [1], "chunk"),
        ("token", 7, 1, None),
    ]
    assert events == expected, f"(kind, time, request, slot): {events}"


@pytest.mark.task("2.6.7")
@pytest.mark.parametrize(("script", "options"), [("", {}), ([97], {"max_tokens": 1})])
def test_prefill_and_place_gives_no_slot_to_what_ended_with_its_first_token(s, script, options):
    """An end token at once, or a limit of one: reported as finished, no slot, nothing in the batch's caches."""
    batch, model, [only], events = batch_of(s, {"Hi": script})
    only.sampling = s.SamplingParams(**options)
    batch.prefill_and_place(only)
    assert batch.running == [], f"it ended at its prefill and needs no slot: {batch.running}"
    assert all(row is None for layer in model.batch_caches for row in layer.rows), "and no row of a cache"
    kinds = [event[0] for event in events]
    assert kinds == ["prefill", "step", "token", "finish"], f"{events}"
    assert events[-1] == ("finish", 2, 0, None), f"reported as finished, without a slot: {events[-1]}"
    assert all(cache.is_released for cache in model.caches), "its own cache is released"


@pytest.mark.task("2.6.7")
def test_prefill_and_place_does_not_run_what_has_ended_before(s):
    """A prompt that was refused, and one that was aborted while it waited: no step, no slot, reported as finished."""
    batch, model, (refused, aborted), events = batch_of(s, {"": "a", "Hi": "b"})
    aborted.finish("abort")
    batch.prefill_and_place(refused)
    batch.prefill_and_place(aborted)
    assert model.trace == [], f"requests that have ended are not computed: {model.trace}"
    assert batch.running == [], f"and take no slot: {batch.running}"
    assert events == [("finish", 0, 0, None), ("finish", 0, 1, None)], f"{events}"


@pytest.mark.task("2.6.7")
@pytest.mark.parametrize(("kind", "trace"), [("prefill", []), ("token", ["prompt Hi"])])
def test_prefill_and_place_hears_an_abort_from_its_listener(s, kind, trace):
    """Whoever hears of the prefill may abort it: no step then. Whoever hears of the token may too: no slot then."""

    def heard(event):
        if event.kind == kind:
            event.request.finish("abort")

    batch, model, [only], events = batch_of(s, {"Hi": "abc"}, heard=heard)
    batch.prefill_and_place(only)
    assert model.trace == trace, f"aborted at {kind!r}: {model.trace}"
    assert batch.running == [], "an aborted request takes no slot"
    assert events[-1] == ("finish", 2.0 * len(trace), 0, None), f"reported as finished: {events}"


@pytest.mark.task("2.6.7")
def test_every_cache_is_released_once(s):
    """When it was copied, or at its end, but not at both: whoever releases twice takes what is another's by then."""
    batch, model, (one, two), _ = batch_of(s, {"Hi": "abc", "Hello": ""})
    batch.prefill_and_place(one)
    batch.prefill_and_place(two)
    for made in (one, two):
        made.finish("abort")
        made.release()
    batch.remove_ended()
    batch.close()
    batch.close()
    assert not model.unreleased(), f"and none is left: {model.unreleased()}"


@pytest.mark.task("2.6.8")
def test_decode_is_one_call_for_all_slots(s):
    """An entry for every slot, None for an idle one; offsets of what the caches hold; each token to its own request."""
    batch, model, requests, events = batch_of(s, {"Hi": "abc", "Hello": "uvw", "!": "xyz"}, size=4)
    for one in requests:
        batch.prefill_and_place(one)
    requests[1].finish("abort")
    batch.remove_ended()
    del model.calls[:], events[:]
    params = s.SamplingParams(temperature=0.5)
    requests[2].sampling = params
    batch.decode()
    assert len(model.calls) == 1, f"one call for all slots, not {len(model.calls)}: {model.trace}"
    call = model.calls[0]
    assert call.tokens == [ord("a"), None, ord("x"), None], f"the last token of each, or None: {call.tokens}"
    assert call.offsets == [2, 0, 1, 0], f"tokens in the cache before the step, 0 when idle: {call.offsets}"
    assert call.sampling == [None, None, params, None], f"one entry per slot: {call.sampling}"
    texts = [r.text for r in requests]
    assert texts == ["ab", "u", "xy"], (
        f"slots 0 and 2 run, slot 1 is idle: the answers are {texts}. Each token belongs to the request of its slot"
    )
    assert [requests[i].offset for i in (0, 2)] == [3, 2], "a step puts one more token into the cache"
    now = model.clock.now
    assert events == [("step", now, [0, 2], "decode"), ("token", now, 0, 0), ("token", now, 2, 2)], (
        f"{events}"
    )


@pytest.mark.task("2.6.8")
def test_decode_goes_on_from_its_own_tokens(s):
    """Three steps: each request's new token is its next input."""
    batch, model, requests, _ = batch_of(s, {"Hi": "abcd", "Hello": "uvwx"})
    for one in requests:
        batch.prefill_and_place(one)
    for _ in range(3):
        batch.decode()
    expected = ["decode au-", "decode bv-", "decode cw-"]
    assert model.trace[2:] == expected, f"a request's last token is its next input: {model.trace[2:]}"
    found = [r.text for r in requests]
    assert found == ["abcd", "uvwx"], f"one token a step for each: {found}"


@pytest.mark.task("2.6.8")
def test_decode_emits_no_token_of_a_request_that_was_aborted_a_moment_ago(s):
    """Whoever hears of slot 0's token aborts slot 1: its text so far stays, and no token of it is emitted any more."""
    requests = []

    def heard(event):
        if event.slot == 0:
            requests[1].finish("abort")

    batch, _, made, events = batch_of(s, {"Hi": "abc", "Hello": "xyz"}, heard=heard)
    requests += made
    for one in requests:
        batch.prefill_and_place(one)
    batch.decode()
    assert (requests[1].text, requests[1].finish_reason) == ("xy", "abort"), (
        f"the step had its token already, so it is text so far: {requests[1].text!r}"
    )
    assert [event[2:] for event in events if event[0] == "token" and event[3] is not None] == [(0, 0)], (
        f"{events}"
    )


@pytest.mark.task("2.6.8")
@pytest.mark.parametrize("thread", [False, True], ids=["from the call", "from another thread"])
def test_abort_while_a_decode_step_runs(s, thread):
    """Slot 1 is aborted while the model computes it: it ends with the call, takes no token, and the others do."""

    def during(call: int) -> None:
        if call == 2:
            abort_from(requests[1], thread)
            seen.append(requests[1].is_done)

    seen = []
    batch, model, requests, events = batch_of(s, {"Hi": "abc", "Hello": "xyz"}, during=during)
    for one in requests:
        batch.prefill_and_place(one)
    del events[:]
    batch.decode()
    assert seen == [False], "while the call runs it is not done"
    found = [(r.text, r.finish_reason) for r in requests]
    assert found == [("ab", None), ("x", "abort")], (
        f"aborted while the step ran: {found}; take the tokens after the call's context"
    )
    assert [event[2] for event in events if event[0] == "token"] == [0], f"no token of it is told: {events}"
    batch.remove_ended()
    assert batch.running == [0] and model.batch_caches[0].rows[1] is None, "its slot is free again"


@pytest.mark.task("2.6.8")
@pytest.mark.parametrize(("error", "reason"), [(ValueError, "error"), (KeyboardInterrupt, "abort")])
def test_a_decode_step_that_fails_ends_who_was_in_it(s, error, reason):
    """All who run, for their caches may hold a part of the step; whoever waits is left alone."""
    answers = {"Hi": "abc", "Hello": "xyz", "!": "u"}
    batch, _, requests, _ = batch_of(s, answers, fails={2: error("no memory")})
    for one in requests[:2]:
        batch.prefill_and_place(one)
    with pytest.raises(error):
        batch.decode()
    assert [r.finish_reason for r in requests] == [reason, reason, None], (
        f"{[r.finish_reason for r in requests]}"
    )
    batch.remove_ended()
    batch.prefill_and_place(requests[2])
    assert requests[2].text == "u", "the next request is served"


# All together, with a scripted model.


def serve(s, answers: dict, prompts=None, heard=None, batch_size: int = 2, max_seq_len: int = 64, **options):
    """(results, model, events) of `batch_generate`. Whatever happens, no cache may stay."""
    model, events = FakeModel(answers, **options), []

    def on_event(event):
        events.append(noted(event))
        if heard:
            heard(event)

    prompts = list(answers) if prompts is None else prompts(model) if callable(prompts) else prompts
    try:
        results = s.batch_generate(
            model, ByteTokenizer(), prompts, max_seq_len, batch_size, clock=model.clock, on_event=on_event
        )
    except (AssertionError, NotImplementedError):  # the script's own words, or a blank task
        raise
    except BaseException:
        assert not model.unreleased(), f"on the way out of an exception not released: {model.unreleased()}"
        raise
    assert not model.unreleased(), f"not released: {model.unreleased()}"
    return results, model, events


def texts(results) -> list[str]:
    return [result.text for result in results]


@pytest.mark.task("2.6.9")
def test_batch_generate_fills_a_free_slot_at_once(s):
    """Two slots, three prompts. The third starts when the first slot is free; it does not wait for the whole batch.

    Each round takes one waiting request into a free slot, and then runs one step for all.
    """
    results, model, _ = serve(s, {"1": "abcd", "2": "u", "3": "xyz"})
    expected = [
        "prompt 1",
        "decode a-",
        "prompt 2",
        "decode bu",
        "prompt 3",
        "decode cx",
        "decode dy",
        "decode -z",
    ]
    assert model.trace == expected, f"the steps were {model.trace}"
    assert texts(results) == ["abcd", "u", "xyz"], f"each prompt gets its own answer: {texts(results)}"
    assert all(r.finish_reason == "stop" and r.error is None for r in results), f"{results}"


@pytest.mark.task("2.6.9")
def test_batch_generate_emits_events_in_order(s):
    """(kind, seconds, prompt, slot) of every event, with a clock that counts the tokens computed."""
    *_, events = serve(s, {"1": "ab", "22": "u", "3": ""})
    assert events == [
        ("prefill", 0, 0, None),
        ("step", 1, [0], "chunk"),
        ("token", 1, 0, None),
        ("step", 2, [0], "decode"),
        ("token", 2, 0, 0),
        ("prefill", 2, 1, None),
        ("step", 4, [1], "chunk"),
        ("token", 4, 1, None),
        ("step", 6, [0, 1], "decode"),
        ("token", 6, 0, 0),
        ("token", 6, 1, 1),
        ("finish", 6, 0, 0),
        ("finish", 6, 1, 1),
        ("prefill", 6, 2, None),
        ("step", 7, [2], "chunk"),
        ("token", 7, 2, None),
        ("finish", 7, 2, None),
    ], f"{events}"


@pytest.mark.task("2.6.9")
def test_each_call_of_the_model_is_one_step_event(s):
    """With its seconds, its tokens, and of a prompt the requests that had to wait for it."""
    steps = []
    _, model, _ = serve(
        s, {"1": "ab", "22": "u"}, heard=lambda event: steps.append(event) if event.kind == "step" else None
    )
    found = [(e.start, e.seconds, p.kind, p.tokens, p.context, p.running) for e in steps for p in e.parts]
    assert found == [
        (0, 1, "chunk", 1, 0, 0),
        (1, 1, "decode", 1, 0, 0),
        (2, 2, "chunk", 2, 0, 1),
        (4, 2, "decode", 2, 0, 0),
    ], f"(start, seconds, kind, tokens, context, running) of {model.trace}: {found}"


@pytest.mark.task("2.6.9")
@pytest.mark.parametrize("batch_size", [1, 2, 3, 7])
def test_any_number_of_slots_gives_the_same_texts(s, batch_size):
    """One slot is one after the other; more slots than prompts leave some idle. No slot stays free without need.

    The first prompt ends late. Each result knows its place, which is that of its prompt.
    """
    answers = {"1": "abcdefghi", "two": "", "3": "jklmnopqr", "four": "stuvwxyz", "5": "lm"}
    results, model, _ = serve(s, answers, batch_size=batch_size)
    assert texts(results) == list(answers.values()), f"each prompt gets its own answer: {texts(results)}"
    assert [r.prompt_idx for r in results] == [0, 1, 2, 3, 4], f"in the order of the prompts: {results}"
    widest = max(call.computed for call in model.calls if call.is_batch)
    assert widest == min(batch_size, 4), f"{widest} requests ran at once on {batch_size} slots"


@pytest.mark.task("2.6.9")
@pytest.mark.parametrize(("batch_size", "max_seq_len"), [(1, 9), (3, 40)])
def test_the_slots_are_as_many_and_as_long_as_asked(s, batch_size, max_seq_len):
    """One cache per layer with `batch_size` slots of `max_seq_len` tokens, whatever the prompts and the model."""
    _, model, _ = serve(s, {"1": "a", "2": "b"}, batch_size=batch_size, max_seq_len=max_seq_len)
    sizes = [(len(layer.rows), layer.max_seq_len) for layer in model.batch_caches]
    assert sizes == [(batch_size, max_seq_len)] * model.num_hidden_layers, (
        f"(slots, tokens of a slot): {sizes}"
    )


@pytest.mark.task("2.6.9")
def test_no_prompts_no_steps(s):
    """An empty list gives an empty list."""
    results, model, events = serve(s, {}, [])
    assert (results, model.calls, events) == ([], [], []), "nothing to do: no step, no event, no result"


@pytest.mark.task("2.6.9")
def test_bad_prompts_fail_alone(s):
    """An empty and an overlong prompt end with "error" and a line that says why; the others get their answers."""
    answers = {"1": "ab", "": "", "x" * 12: "", "3": "cd", "y" * 11: "e"}
    results, model, events = serve(s, answers, max_seq_len=12)
    assert [r.finish_reason for r in results] == ["stop", "error", "error", "stop", "length"], f"{results}"
    assert texts(results) == ["ab", "", "", "cd", "e"], f"{texts(results)}"
    assert "empty" in results[1].error and "12" in results[2].error, f"{results[1].error}; {results[2].error}"
    assert not any("x" in step for step in model.trace), f"a refused prompt is not computed: {model.trace}"
    ends = [event[2] for event in events if event[0] == "finish"]
    assert sorted(ends) == [0, 1, 2, 3, 4], f"each ends once, also a refused one: {ends}"


@pytest.mark.task("2.6.9")
@pytest.mark.parametrize("room", [1, 2, 5])
def test_max_seq_len_counts_prompt_and_answer(s, room):
    """A prompt of 6 in slots of 6 + room tokens gets exactly `room` new ones."""
    results, model, _ = serve(s, {"prompt": [*b"abcdefg"[:room]]}, max_seq_len=6 + room)
    assert results[0].text == "abcdefg"[:room] and results[0].finish_reason == "length", f"{results}"
    assert len(model.calls) == room, f"{room} new tokens take {room} steps: {model.trace}"


@pytest.mark.task("2.6.9")
def test_requests_bring_limits_and_stop_strings_of_their_own(s):
    """Requests and texts may be mixed. Each has its own limit, stop strings and parameters, in the same batch."""

    def prompts(model):
        params = s.SamplingParams(temperature=0.7, max_tokens=2)
        return [
            s.Request(model, ByteTokenizer(), "1", prompt_idx=0, sampling=params),
            "2",
            s.Request(model, ByteTokenizer(), "3", prompt_idx=2, stop=["nd"], max_seq_len=9),
        ]

    answers = {"1": [*b"ab"], "2": "uvw", "3": [*b"the end"]}
    results, model, _ = serve(s, answers, prompts, batch_size=3)
    assert texts(results) == ["ab", "uvw", "the e"], f"each has its own limit and stop: {texts(results)}"
    assert [r.finish_reason for r in results] == ["length", "stop", "stop"], f"{results}"
    decode = next(call for call in model.calls if isinstance(call.sampling, list))
    temperatures = {params and params.temperature for params in (model.calls[0].sampling, decode.sampling[0])}
    assert temperatures == {0.7}, f"the request's parameters go with its prompt and its slot: {temperatures}"


@pytest.mark.task("2.6.9")
def test_a_request_with_more_room_than_a_slot_is_limited(s):
    """max_seq_len of the call holds for requests too: the slots have no more room."""

    def prompts(model):
        return [s.Request(model, ByteTokenizer(), text, max_seq_len=30) for text in ("12", "123456")]

    results, *_ = serve(s, {"12": [*b"abc"], "123456": ""}, prompts, max_seq_len=5)
    assert [r.finish_reason for r in results] == ["length", "error"], f"the slots hold 5 tokens: {results}"


@pytest.mark.task("2.6.9")
@pytest.mark.parametrize("victim", [0, 1, 2])
def test_abort_while_running_or_waiting(s, victim):
    """At its third token prompt 0 aborts itself, its neighbour, or one that still waits. The others go on."""
    requests = []

    def prompts(model):
        requests[:] = [s.Request(model, ByteTokenizer(), str(n), prompt_idx=n) for n in range(4)]
        return requests

    def heard(event):
        if event.kind == "token" and event.request is requests[0] and len(requests[0].tokens) == 3:
            requests[victim].abort()

    answers = {"0": "abcdef", "1": "uvwxyz", "2": "klm", "3": "n"}
    results, model, events = serve(s, answers, prompts, heard)
    so_far = ["abc", "uv", ""][victim]
    expected = [so_far if n == victim else answers[str(n)] for n in range(4)]
    assert texts(results) == expected, f"aborted: {victim}; {texts(results)}"
    reasons = ["abort" if n == victim else "stop" for n in range(4)]
    assert [r.finish_reason for r in results] == reasons, f"{results}"
    assert sorted(event[2] for event in events if event[0] == "finish") == [0, 1, 2, 3], f"{events}"
    assert victim < 2 or "prompt 2" not in model.trace, f"aborted while it waited: {model.trace}"


class Boom(BaseException):
    """No code of the course may catch this."""


@pytest.mark.task("2.6.9")
@pytest.mark.parametrize(
    ("step", "error"),
    [
        *((step, ValueError) for step in range(8)),
        *((step, KeyboardInterrupt) for step in (0, 3, 6)),
        (2, SystemExit),
        (5, Boom),
    ],
)
def test_every_cache_is_released_when_a_step_fails(s, step, error):
    """Whatever a step raises, at a prompt or at a decode, reaches the caller; all requests have ended then."""
    requests = []

    def prompts(model):
        requests[:] = [s.Request(model, ByteTokenizer(), n) for n in "123"]
        return requests

    with pytest.raises(error):
        serve(s, {"1": "abcd", "2": "u", "3": "xyz"}, prompts, fails={step: error()})
    reasons = [one.finish_reason for one in requests]
    assert all(reasons), f"every request has ended when the call has: {reasons}"
    failed = "error" if issubclass(error, Exception) else "abort"
    assert failed in reasons, f"who was in the step that failed has ended with it: {reasons}"
    assert set(reasons) <= {"stop", "abort", failed}, f"what waited was aborted: {reasons}"


@pytest.mark.task("2.6.9")
@pytest.mark.parametrize("kind", ["prefill", "step", "token", "finish"])
def test_every_cache_is_released_when_a_listener_fails(s, kind):
    """The same for on_event, at each kind of event."""

    told = []

    def heard(event):
        told.append(event.kind)
        if told.count(kind) == 2:
            raise Boom

    with pytest.raises(Boom):
        serve(s, {"1": "abcd", "2": "u", "3": "xyz"}, heard=heard)


# All together, with a real model. Its logits, in float32, against Week 1's model.


class Watched:
    """A model whose every logit is looked at, also those of idle rows, which nobody samples."""

    def __init__(self, b, model):
        self.b, self.model = b, model

    def __getattr__(self, name: str):
        return getattr(self.model, name)

    def __call__(self, *arguments):
        logits = self.model(*arguments)
        assert np.isfinite(self.b.numpy(logits)).all(), "logits hold NaN or infinity, maybe in an idle row"
        return logits


def assert_equals_running_alone(
    b, s, prompts: list, limits: list, batch_size: int, max_seq_len: int, **options
):
    """Every logit that a token was chosen from equals that of Week 1's model, which gets the whole text each time."""
    checkpoint = random_checkpoint(b, QWEN)
    logits, latest = {i: [] for i in range(len(prompts))}, {}

    def on_event(event):
        if event.kind == "token":
            logits[event.request.prompt_idx].append(latest[event.slot or 0])

    runner = b.runner(
        Watched(b, b.Qwen3ModelWeek2(checkpoint)),
        on_logits=lambda rows, found: latest.update(zip(rows, found, strict=True)),
        **options,
    )
    requests = [
        s.Request(runner, ByteTokenizer(), ids, prompt_idx=i, sampling=s.SamplingParams(max_tokens=limit))
        for i, (ids, limit) in enumerate(zip(prompts, limits, strict=True))
    ]
    s.batch_generate(runner, ByteTokenizer(), requests, max_seq_len, batch_size, on_event=on_event)
    alone = b.Qwen3ModelWeek1(checkpoint)
    for index, made in enumerate(requests):
        count = min(limits[index], max_seq_len - len(prompts[index]))
        assert len(made.tokens) == count, f"request {index} has {len(made.tokens)} tokens, not {count}"
        whole = b.numpy(alone(b.array(np.array([[*prompts[index], *made.tokens[:-1]]]))))[0]
        idea = f"request {index} ({len(prompts[index])} tokens) is not what it is when it runs alone"
        assert_close(np.array(logits[index]), whole[len(prompts[index]) - 1 :], atol=1e-4, idea=idea)


def random_prompts(rng, lengths) -> list[list[int]]:
    return [rng.integers(0, 61, size=length).tolist() for length in lengths]


@pytest.mark.task("2.6.9")
@pytest.mark.parametrize("batch_size", [1, 2, 4])
def test_any_mix_of_lengths_equals_running_alone(b, s, rng, batch_size):
    """Random lengths and limits; slots are used again, idle rows stand between running ones, some reach max_seq_len."""
    prompts = random_prompts(rng, rng.integers(1, 31, size=9))
    limits = rng.integers(1, 9, size=9).tolist()
    assert_equals_running_alone(b, s, prompts, limits, batch_size, max_seq_len=32)


@pytest.mark.task("2.6.9")
def test_prompts_padded_to_a_bucket_equal_running_alone(b, s, rng):
    """A device that wants few shapes pads each prompt; what the padding leaves in a slot is never seen."""
    prompts = random_prompts(rng, [3, 16, 1, 25])
    assert_equals_running_alone(b, s, prompts, [8, 3, 9, 4], batch_size=2, max_seq_len=40, prompt_bucket=16)
