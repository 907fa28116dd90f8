"""Week 1 Day 6: generate. The model is a script and the vocabulary is bytes, so every call can be compared exactly."""

import numpy as np
import pytest

from support.close import assert_close
from tiny_llm_engine.models.tokenization import StreamDetokenizer

END_OF_TEXT, END_OF_TURN, OK = 256, 257, 258
VOCAB = 260


class ByteTokenizer:
    """One id a byte, two ids that end a text, and one for "ok", which `encode` writes as two bytes all the same."""

    eos_token_ids = frozenset({END_OF_TEXT, END_OF_TURN})

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, ids: list[int]) -> str:
        return b"".join(map(bytes_of, ids)).decode(errors="replace")

    def detokenizer(self) -> StreamDetokenizer:
        return StreamDetokenizer(bytes_of)


def bytes_of(token: int) -> bytes:
    return bytes([token]) if token < 256 else {OK: b"ok"}.get(token, b"")


class ScriptedModel:
    """Prefers `script[n]` in call n, behind the last token; behind every other token it prefers another id."""

    def __init__(self, b, script: list[int], events: list | None = None):
        self.b, self.script, self.inputs = b, script, []
        self.events = [] if events is None else events

    def __call__(self, inputs):
        ids = self.b.numpy(inputs)
        assert ids.ndim == 2, f"the model takes ids of shape (1, L), not {ids.shape}: a batch of one text"
        assert ids.dtype.kind in "iu", f"token ids are integers, not {ids.dtype}"
        assert len(self.inputs) < len(self.script), "the model was called again after the text had ended"
        wanted = self.script[len(self.inputs)]
        self.inputs.append(ids.tolist())
        self.events.append("model")
        logits = np.zeros((*ids.shape, VOCAB))
        logits[:, :-1, (wanted + 1) % VOCAB] = 9
        logits[:, -1, wanted] = 5
        return self.b.array(logits)


def generate(b, script: list[int], prompt: str = "Hi", **options):
    """(text, what the model was given in each call, the pieces)."""
    model, pieces = ScriptedModel(b, script), []
    text = b.simple_generate(model, ByteTokenizer(), prompt, on_text=pieces.append, **options)
    return text, model.inputs, pieces


@pytest.mark.task("1.6.1")
def test_next_token_sends_every_token_in_one_row(b):
    """next_token(model, tokens) calls the model once, with all tokens as integers of shape (1, L)."""
    model = ScriptedModel(b, [7])
    b.generate.next_token(model, [5, 3, 8, 3])
    assert model.inputs == [[[5, 3, 8, 3]]], f"the model must see all tokens, in order, once: {model.inputs}"


@pytest.mark.task("1.6.1")
def test_next_token_reads_the_scores_behind_the_last_token(b):
    """The logits at position L - 1 score the token that comes next; the result is an ordinary int."""
    token = b.generate.next_token(ScriptedModel(b, [7]), [5, 3, 8])
    assert token == 7, f"got {token}: 8 is the best after an earlier token, 7 after the last one"
    assert type(token) is int, f"an id is an ordinary int, not {type(token).__name__}"


@pytest.mark.task("1.6.1")
def test_next_token_gives_the_sampler_one_row(b, rng):
    """A sampler is called once, with the last position's logits as (1, V), and its choice is the result."""
    scores, seen = rng.normal(size=(1, 4, VOCAB)), []

    def sampler(logits):
        seen.append(b.numpy(logits))
        return b.array([42])

    token = b.generate.next_token(lambda inputs: b.array(scores), [5, 3, 8, 9], sampler)
    assert len(seen) == 1, f"the sampler was called {len(seen)} times for one token"
    assert_close(
        seen[0], scores[:, -1], idea="the sampler takes the logits of the last position, shape (1, V)"
    )
    assert token == 42 and type(token) is int, f"the sampler chose 42, next_token returned {token!r}"


@pytest.mark.task("1.6.1")
def test_next_token_without_a_sampler_is_greedy(b, rng):
    """None takes the best token, also when all scores are negative and close."""
    scores = -10 + 0.1 * rng.normal(size=(1, 3, VOCAB))
    token = b.generate.next_token(lambda inputs: b.array(scores), [1, 2, 3])
    assert token == scores[0, -1].argmax(), "without a sampler the token with the highest logit is next"


@pytest.mark.task("1.6.2")
def test_generate_sends_the_whole_text_every_time(b):
    """Week 1 has no cache: the model sees the prompt and everything generated so far, one token more in each call."""
    text, inputs, _ = generate(b, [*b"you", END_OF_TEXT])
    expected = [[[*b"Hi"]], [[*b"Hiy"]], [[*b"Hiyo"]], [[*b"Hiyou"]]]
    assert inputs == expected, f"each call sees the whole text so far, one token more than before: {inputs}"
    assert text == "you", f"the text is what was generated, without the prompt: {text!r}"


@pytest.mark.task("1.6.2")
@pytest.mark.parametrize("end", [END_OF_TEXT, END_OF_TURN])
def test_generate_stops_at_every_end_token(b, end):
    """Any id of eos_token_ids ends the text. It is no part of it, and the model is not called after it."""
    text, inputs, pieces = generate(b, [*b"ok", end, *b"never"], max_tokens=6)
    assert text == "ok", f"id {end} is one of eos_token_ids and ends the text: {text!r}"
    assert len(inputs) == 3, f"the end token comes from call 3, but the model was called {len(inputs)} times"
    assert pieces == ["o", "k"], f"the end token has no piece: {pieces}"


@pytest.mark.task("1.6.2")
def test_generate_may_end_at_once(b):
    """A model may have nothing to say: the text is empty and on_text is not called."""
    text, inputs, pieces = generate(b, [END_OF_TURN, *b"never"])
    assert (text, len(inputs), pieces) == ("", 1, []), "an end token as the first one gives an empty text"


@pytest.mark.task("1.6.2")
@pytest.mark.parametrize("limit", [1, 2, 5])
def test_generate_stops_at_the_limit(b, limit):
    """max_tokens counts new tokens, not the prompt's; exactly so many runs of the model pay for them."""
    text, inputs, _ = generate(b, [*b"abcdefgh"], prompt="a longer prompt", max_tokens=limit)
    assert text == "abcdefgh"[:limit], f"max_tokens={limit} must give {limit} new tokens: {text!r}"
    assert len(inputs) == limit, f"{limit} tokens take {limit} runs of the model, not {len(inputs)}"


@pytest.mark.task("1.6.2")
def test_generate_counts_from_the_default_limit(b):
    """Without max_tokens a model that never ends is stopped after 256 tokens."""
    text, _, _ = generate(b, [*b"x"] * 300)
    assert text == "x" * 256, f"the default limit is 256 tokens, not {len(text)}"


@pytest.mark.task("1.6.2")
@pytest.mark.parametrize("text", ["né", "北京 ok", "a😀b", "日本"])
def test_generate_never_splits_a_character(b, text):
    """A character may take up to four tokens here. Its piece comes with the last of them; those before are empty."""
    actual, _, pieces = generate(b, [*text.encode(), END_OF_TEXT])
    assert actual == text, f"{actual!r}: an id may be half a character; the detokenizer puts them together"
    expected = [piece for c in text for piece in [""] * (len(c.encode()) - 1) + [c]]
    assert pieces == expected, f"one piece per token, empty while a character is unfinished: {pieces}"


@pytest.mark.task("1.6.2")
def test_generate_delivers_what_the_detokenizer_still_holds(b):
    """Cut in the middle of a character, the text ends with what finish() makes of it; on_text gets it too."""
    text, _, pieces = generate(b, [*"a😀".encode()], max_tokens=3)
    assert text == "a\ufffd", f"finish() has the end of the text: {text!r}"
    assert pieces == ["a", "", "", "\ufffd"], f"on_text must get what finish() returns: {pieces}"


@pytest.mark.task("1.6.2")
def test_generate_streams(b):
    """on_text gets each piece before the model runs for the next token: that is what a reader waits for."""
    events: list = []
    model = ScriptedModel(b, [*b"abc", END_OF_TEXT], events)
    b.simple_generate(model, ByteTokenizer(), "Hi", on_text=events.append)
    assert events == ["model", "a", "model", "b", "model", "c", "model"], f"each piece at once: {events}"


@pytest.mark.task("1.6.2")
def test_generate_samples_every_token(b):
    """The sampler chooses each token, the first one too; the text so far grows by its choices."""
    choices = iter([*b"xyz", END_OF_TEXT])
    text, inputs, _ = generate(b, [*b"abcd"], sampler=lambda logits: b.array([next(choices)]))
    assert text == "xyz", f"the sampler chose x, y, z, the model alone a, b, c: {text!r}"
    assert inputs[-1] == [[*b"Hixyz"]], f"what was chosen is what the model sees next: {inputs[-1]}"


@pytest.mark.task("1.6.2")
def test_generate_keeps_the_ids_that_the_model_chose(b):
    """Text has many spellings in ids. The model goes on from the ids it chose, not from its text encoded again."""
    text, inputs, _ = generate(b, [OK, *"é".encode(), END_OF_TEXT])
    assert text == "oké"
    idea = "append the id itself: encoding the text again gives other ids, and loses an unfinished character"
    assert inputs[1:3] == [[[*b"Hi", OK]], [[*b"Hi", OK, 0xC3]]], f"{idea}: {inputs}"


@pytest.mark.task("1.6.2")
def test_generate_works_without_on_text(b):
    """on_text is optional, and two calls do not know of each other."""
    tokenizer = ByteTokenizer()
    for word in ("one", "two"):
        text = b.simple_generate(ScriptedModel(b, [*word.encode(), END_OF_TEXT]), tokenizer, "Hi")
        assert text == word, f"a call starts afresh: {text!r}"


@pytest.mark.task("1.6.2")
def test_generate_refuses_what_has_no_meaning(b):
    """An empty prompt and a limit below 1 are errors, before the model runs; a limit of 1 is none."""
    for prompt, limit in (("", 5), ("Hi", 0), ("Hi", -1)):
        with pytest.raises(ValueError, match="prompt is empty" if not prompt else f"max_tokens is {limit}"):
            generate(b, [], prompt, max_tokens=limit)
    assert generate(b, [*b"a"], max_tokens=1)[0] == "a"
