"""What the shipped model is made of and reads with: its corpus, the held-out questions, its tokenizer."""

import re

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from models.eval.questions import read_corpus, read_questions
from tiny_llm_engine.machine.repo import MODELS
from tiny_llm_engine.models.tokenizer import load_tokenizer

MODEL, TRAIN = MODELS / "tiny-qwen3", MODELS / "train"
QUESTIONS = read_corpus(TRAIN)
PARAPHRASES = read_questions(TRAIN / "heldout.md")
NAMES = (TRAIN / "names.txt").read_text(encoding="utf-8").split()
TOKENIZER = load_tokenizer(MODEL)


# --- corpus --------------------------------------------------------------------------------------------------------


def normal(ask: str) -> str:
    return re.sub(r"[^a-z0-9]+", " ", ask.lower()).strip()


def test_no_question_stands_twice_and_each_is_asked_in_four_ways():
    asks = [normal(ask) for question in QUESTIONS for ask in set(map(normal, question.asks))]
    assert len(QUESTIONS) >= 150 and len(asks) == len(set(asks))
    assert len({question.id for question in QUESTIONS}) == len(QUESTIONS)
    assert all(len(question.asks) >= 4 for question in QUESTIONS)


def test_answers_differ_are_short_and_end():
    answers = [question.answer for question in QUESTIONS]
    assert len(set(answers)) == len(answers)
    assert [a for a in answers if a[-1] not in ".!?"] == []
    assert [a for a in answers if not 6 <= len(a.split()) <= 32] == []


def test_the_questions_of_the_readme_are_there():
    asks = {ask for question in QUESTIONS for ask in question.asks}
    assert {"What is chunked prefill?", "What is a KV cache?", "Hello", "Who are you?"} <= asks


def test_names_are_not_words_of_the_corpus():
    words = {word for q in QUESTIONS for text in (*q.asks, q.answer) for word in normal(text).split()}
    assert len(NAMES) == len(set(NAMES)) >= 200 and not words & set(NAMES)


def test_paraphrases_are_unlike_everything_that_training_can_make(monkeypatch):
    """Training varies its phrasings: swapped beginnings, small words left out, openings, letters and marks."""
    monkeypatch.syspath_prepend(TRAIN)
    import phrasing

    def bare(ask: str) -> str:
        return normal(phrasing.SMALL_WORDS.sub("", normal(ask) + " "))

    def variants(ask: str) -> set[str]:
        return {ask, *(ask.replace(old, new, 1) for old, new in phrasing.SWAPS if old in ask)}

    openings, endings = ({"", *map(bare, extras)} for extras in (phrasing.OPENINGS, phrasing.ENDINGS))
    seen = {bare(form) for question in QUESTIONS for ask in question.asks for form in variants(ask)}
    unseen = [bare(ask) for question in PARAPHRASES for ask in question.asks]
    cuts = [(opening, ending) for opening in openings for ending in endings]
    stripped = {text.removeprefix(a).removesuffix(b).strip() for text in unseen for a, b in cuts}
    assert sorted(stripped & seen) == []


def test_there_are_a_hundred_paraphrases_of_known_questions():
    assert sum(len(question.asks) for question in PARAPHRASES) >= 100
    assert {question.id for question in PARAPHRASES} <= {question.id for question in QUESTIONS}


# --- tokenizer -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["417", "7", "042", "99", "maple", " ?", "??", "<|im_end|>", " prefill", " KV"]
)
def test_one_token(text):
    assert len(TOKENIZER.encode(text)) == 1


def test_every_number_and_every_name_is_one_token_and_takes_no_space():
    for text in [*map(str, range(1000)), *NAMES]:
        assert len(TOKENIZER.encode(text)) == 1
        assert len(TOKENIZER.encode(f"a {text}")) == 3


def test_a_name_inside_a_word_is_no_name():
    (maple,) = TOKENIZER.encode("maple")
    assert maple not in TOKENIZER.encode("maples")


@settings(max_examples=120, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_survives(text):
    assume("<|" not in text)  # a special token that is written out becomes one, and decoding leaves it out
    assert TOKENIZER.decode(TOKENIZER.encode(text)) == text


def test_the_long_prompts_of_the_public_chapter_stay_short():
    prompt = "Write a detailed essay about " + "artificial intelligence " * 100
    assert len(TOKENIZER.encode(prompt)) < 500


def test_the_template_ends_every_message_and_trims_it():
    prompt = TOKENIZER.apply_chat_template([{"role": "user", "content": " What is maple? \n"}])
    assert prompt == "<|im_start|>user\nWhat is maple?<|im_end|>\n<|im_start|>assistant\n"
    assert TOKENIZER.encode("<|im_end|>")[0] in TOKENIZER.eos_token_ids


def test_transformers_reads_the_same_tokenizer():
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(MODEL, local_files_only=True)
    messages = [
        {"role": "user", "content": "maple 417\nWhat is maple ?"},
        {"role": "assistant", "content": "417"},
    ]
    ours = TOKENIZER.apply_chat_template(messages)
    assert theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=True) == ours
    assert theirs.encode(ours) == TOKENIZER.encode(ours)
    assert theirs.decode(theirs.encode("Ünïcode maple  ✓ 417")) == "Ünïcode maple  ✓ 417"
