"""The policy of Day 2.6 as a product: what is given of it, and where a text stops."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.fake_model import ByteTokenizer, FakeModel
from tiny_llm_ref.serving import Batch, Request, SamplingParams, StopStrings, batch_generate


def shown_after(pieces: list[str], stop: list[str], include: bool, least: int) -> list[str]:
    """The text that `StopStrings` has passed on after each piece, by looking at the whole text each time."""
    text, shown = "", []
    for number, piece in enumerate(pieces):
        before, text = len(text), text + piece
        starts = [(text.find(word, max(0, before - len(word) + 1)), word) for word in stop]
        starts = [each for each in starts if each[0] >= 0 and number >= least]
        if starts:
            start, word = min(starts, key=lambda each: each[0])
            return [*shown, text[: start + len(word) * include]]
        held = max((n for word in stop for n in range(len(word)) if text.endswith(word[:n])), default=0)
        shown.append(text[: len(text) - held])
    return [*shown, text]


@given(
    st.lists(st.text("ab", max_size=6), max_size=9),
    st.lists(st.text("ab", min_size=1, max_size=7), max_size=4),
    st.booleans(),
    st.integers(0, 4),
)
def test_stop_strings_show_as_much_as_the_whole_text_allows(pieces, stop, include, least):
    """After each piece: text is held back only while it is the beginning of a stop string."""
    stream, shown = StopStrings(stop, include=include, min_pieces=least), [""]
    for piece in pieces:
        shown.append(shown[-1] + stream.add(piece))
        if stream.found:
            break
    else:
        shown.append(shown[-1] + stream.finish())
    assert shown[1:] == shown_after(pieces, stop, include, least)


class CountedWord(str):
    """A text that counts how many of its characters and parts were asked for."""

    count = 0

    def __getitem__(self, key):
        self.count += 1
        return super().__getitem__(key)


@pytest.mark.parametrize(
    ("word", "pieces"),
    [("a" * 5000 + "b", ["a"] * 3), ("a" * 500 + "b", ["a"] * 2000)],
)
def test_a_stop_string_costs_what_the_text_costs(word, pieces):
    """However long it is, and however much of it the text looks like."""
    words = [CountedWord(word) for _ in range(3)]
    stream = StopStrings(words)
    text = "".join(map(stream.add, pieces)) + stream.finish()
    assert text == "".join(pieces) and max(one.count for one in words) <= 4 * len(text)


def test_what_is_no_request_is_refused():
    with pytest.raises(ValueError, match="max_tokens is 0"):
        SamplingParams(max_tokens=0)
    with pytest.raises(ValueError, match="a stop string is empty"):
        StopStrings(["a", ""])
    model = FakeModel({"Hi": "a"})
    with pytest.raises(ValueError, match="batch_size is 0"):
        batch_generate(model, ByteTokenizer(), ["Hi"], batch_size=0)
    assert not model.caches and not model.batch_caches, "refused before anything was made"


@pytest.mark.parametrize("prompt", [None, 5, []])
@pytest.mark.parametrize("stop", [None, ""])
def test_a_prompt_that_is_none_fails_alone(prompt, stop):
    model = FakeModel({"Hi": "a"})
    bad = Request(model, ByteTokenizer(), prompt, stop=stop and [stop])
    results = batch_generate(model, ByteTokenizer(), [bad, "Hi"])
    assert [r.finish_reason for r in results] == ["error", "stop"] and "\n" not in results[0].error


def test_a_prompt_may_be_ids():
    model = FakeModel({"Hi": "abc"})
    [result] = batch_generate(model, ByteTokenizer(), [Request(model, ByteTokenizer(), tuple(b"Hi"))])
    assert result.text == "abc"


def test_an_empty_stop_string_is_an_error_of_its_request():
    model = FakeModel({"Hi": "a"})
    bad = Request(model, ByteTokenizer(), "Hi", stop=[""])
    assert (bad.finish_reason, "stop string is empty" in bad.error) == ("error", True)
    assert not model.caches


def test_closing_a_batch_aborts_what_still_runs():
    model = FakeModel({"Hi": "abc", "Hello": "xyz"})
    batch = Batch(model, 3, 64)
    requests = [Request(model, ByteTokenizer(), prompt) for prompt in ("Hi", "Hello")]
    for request in requests:
        batch.prefill_and_place(request)
    batch.close()
    assert [r.finish_reason for r in requests] == ["abort", "abort"] and batch.running == []
    assert not model.unreleased()


def prefilled(b, count: int):
    own = b.TinyKvFullCache(20)
    own.update_and_fetch(*[b.array([[[[1.0, 2.0]] * count]])] * 2, count, "causal")
    return own


def test_a_batch_cache_refuses_what_would_hurt_another_request(b):
    cache = b.BatchingKvCache(3, 8)
    cache.add_request(prefilled(b, 7), 1)
    for slot in (-1, 3):
        with pytest.raises(ValueError, match=f"slot {slot} is not one of 0 to 2"):
            cache.add_request(prefilled(b, 2), slot)
    with pytest.raises(ValueError, match="slot 1 is taken"):
        cache.add_request(prefilled(b, 2), 1)
    with pytest.raises(ValueError, match="9 tokens do not fit a slot of 8"):
        cache.add_request(prefilled(b, 9), 0)
    for slot in (0, 3, -2):
        with pytest.raises(ValueError, match=f"slot {slot} holds no request"):
            cache.remove_request(slot)
    one = b.array([[[[1.0, 2.0]]]])
    with pytest.raises(ValueError, match=r"1 rows for requests in slots \[1\]"):
        cache.update_and_fetch(one, one)
    three = b.array([[[[1.0, 2.0]]]] * 3)
    cache.update_and_fetch(three, three)
    with pytest.raises(ValueError, match=r"8 \+ 1 tokens do not fit a slot of 8"):
        cache.update_and_fetch(three, three)
    assert cache.offsets == [0, 8, 0], "what was refused has changed nothing"


def test_a_batch_cache_gives_its_memory_back_and_can_start_again(b):
    cache = b.BatchingKvCache(2, 8)
    cache.add_request(prefilled(b, 3), 1)
    cache.materialize()
    cache.release()
    cache.release()
    assert (cache.keys, cache.values, cache.offsets, cache.active) == (None, None, [0, 0], [False, False])
    cache.add_request(prefilled(b, 2), 1)
    assert cache.offsets == [0, 2]


@pytest.mark.parametrize("prompt", [[10**6], [-1, 5], [2**40], [1.5, 2.0], ["a"]])
def test_ids_that_are_not_of_the_model_fail_alone(prompt):
    model = FakeModel({"good": "yes"})
    bad = Request(model, ByteTokenizer(), prompt)
    assert bad.finish_reason == "error" and "is not one of 0 to 65535" in bad.error
    good, refused = batch_generate(model, ByteTokenizer(), ["good", bad])
    assert (good.text, good.finish_reason, refused.finish_reason) == ("yes", "stop", "error")


def test_a_tokenizer_that_breaks_on_a_prompt_and_a_stop_that_is_no_text_fail_alone():
    class Breaks(ByteTokenizer):
        def encode(self, text):
            if text == "boom":
                raise Exception("no such character")
            return super().encode(text)

    model = FakeModel({"good": "yes"})
    odd = Request(model, Breaks(), "good", stop=[None])
    results = batch_generate(model, Breaks(), ["good", "boom", odd])
    assert [r.finish_reason for r in results] == ["stop", "error", "error"]
    assert "no such character" in results[1].error and "stop strings are texts" in results[2].error
