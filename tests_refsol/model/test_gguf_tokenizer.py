"""Tokenizers of GGUF files: the ids, the text and the prompts are llama.cpp's, and a broken header is one line."""

import json
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tiny_llm_engine.models.files import CheckpointError
from tiny_llm_engine.models.tokenization import Tokenizer
from tiny_llm_extensions.gguf.gguf_tokenizer import gguf_tokenizer

FILE = Path("model.gguf")
GGML = "tokenizer.ggml."
GOLDENS = json.loads(
    (Path(__file__).parents[1] / "goldens" / "llama_cpp_tokens.json").read_text(encoding="utf-8")
)
SMALL = [name for name in GOLDENS["tokenizers"] if name != "smollm2"]
ALL = [*SMALL, pytest.param("smollm2", marks=pytest.mark.tool("smollm2"))]
QUESTION = [{"role": "user", "content": "hi"}]
CHAT = "{{ bos_token }}{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}{{ unk_token }}{{ pad_token }}"


def header(name: str, **changes) -> dict:
    """The header of a small vocabulary; a field set to None is taken out."""
    golden = GOLDENS["tokenizers"][name]
    fields = GOLDENS["vocabularies"][golden["vocabulary"]] | golden["fields"]
    fields |= {GGML + key: value for key, value in changes.items()}
    return {key: value for key, value in fields.items() if value is not None}


@cache
def tokenizer_of(name: str) -> Tokenizer:
    if name != "smollm2":
        return gguf_tokenizer(header(name), FILE)
    from tiny_llm_engine.models.smollm2 import smollm2_file
    from tiny_llm_extensions.gguf.gguf_file import open_gguf

    return gguf_tokenizer(open_gguf(smollm2_file()).fields, smollm2_file())


@pytest.mark.parametrize("name", ALL)
def test_the_ids_are_those_of_llama_cpp(name):
    tokenizer, expected = tokenizer_of(name), GOLDENS["tokenizers"][name]["ids"]
    actual = [tokenizer.encode(text, add_special_tokens=False) for text in GOLDENS["texts"]]
    wrong = [text for text, a, b in zip(GOLDENS["texts"], actual, expected, strict=True) if a != b]
    assert wrong == []


def test_qwens_that_learned_from_deepseek_split_texts_as_qwen_does():
    distilled = gguf_tokenizer(header("qwen2", pre="deepseek-r1-qwen"), FILE)
    for text, ids in zip(GOLDENS["texts"], GOLDENS["tokenizers"]["qwen2"]["ids"], strict=True):
        assert distilled.encode(text, add_special_tokens=False) == ids


@pytest.mark.parametrize("name", ALL)
def test_the_text_comes_back_as_from_llama_cpp(name):
    """Whole and streamed. What llama.cpp loses (bytes that a vocabulary lacks) is lost here too."""
    tokenizer, golden = tokenizer_of(name), GOLDENS["tokenizers"][name]
    expected = [golden["changed"].get(text, text) for text in GOLDENS["texts"]]
    assert [tokenizer.decode(ids, skip_special_tokens=False) for ids in golden["ids"]] == expected
    streams = [(tokenizer.detokenizer(skip_special_tokens=False), ids) for ids in golden["ids"]]
    assert ["".join([*map(stream.add, ids), stream.finish()]) for stream, ids in streams] == expected


@pytest.mark.parametrize("name", ALL)
def test_a_text_begins_and_ends_as_in_llama_cpp(name):
    tokenizer, golden = tokenizer_of(name), GOLDENS["tokenizers"][name]
    assert tokenizer.encode("a b") == golden["with_special"]
    assert sorted(tokenizer.eos_token_ids) == golden["ends"]


@pytest.mark.tool("smollm2")
def test_the_prompts_are_those_of_llama_cpp():
    prompts = [tokenizer_of("smollm2").apply_chat_template(chat) for chat in GOLDENS["conversations"]]
    assert prompts == GOLDENS["tokenizers"]["smollm2"]["prompts"]


def test_the_goldens_have_a_provenance():
    assert GOLDENS["provenance"].keys() == {"command", "date", "machine", "versions", "smollm2"}
    assert GOLDENS["provenance"]["versions"].keys() == {"xllamacpp", "gguf", "tokenizers"}


TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x06▁<["))


@pytest.mark.parametrize("name", ["qwen2", "pieces", "pieces without a prefix"])
@settings(max_examples=50, deadline=None)
@given(text=TEXT)
def test_any_text_comes_back(name, text):
    tokenizer = tokenizer_of(name)
    stream = tokenizer.detokenizer()
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert tokenizer.decode(ids) == text == "".join([*map(stream.add, ids), stream.finish()])


def test_control_tokens_are_not_shown_and_user_defined_ones_are():
    tokenizer = tokenizer_of("qwen2")
    ids = tokenizer.encode("<|im_start|>a<unk><think>b<|im_end|>", add_special_tokens=False)
    assert tokenizer.decode(ids) == "a<think>b"
    assert tokenizer.text_of(ids[0]) == "<|im_start|>" and tokenizer.bytes_of(ids[0]) == b"<|im_start|>"


def test_a_text_that_begins_already_begins_once():
    tokenizer = tokenizer_of("llama-bpe")
    assert tokenizer.encode("<|im_start|>a b") == tokenizer.encode("a b")


def test_the_beginning_of_sentencepiece_has_usual_ids():
    fields = header("pieces", token_type=None)
    assert gguf_tokenizer(fields, FILE).encode("a b")[0] == 1
    assert gguf_tokenizer(header("pieces", bos_token_id=0), FILE).encode("a b")[0] == 0


@pytest.mark.parametrize("key", ["tokenizer.chat_template", "tokenizer.chat_template.default"])
def test_the_template_gets_the_texts_of_tokens(key):
    fields = header("qwen2", padding_token_id=0) | {key: CHAT, "tokenizer.chat_template.tool_use": "no"}
    prompt = gguf_tokenizer(fields, FILE).apply_chat_template(QUESTION)
    assert prompt == f"<|im_start|>hi<|endoftext|><unk>{fields[GGML + 'tokens'][0]}"
    pieces = gguf_tokenizer(header("pieces") | {key: CHAT}, FILE)
    assert pieces.apply_chat_template(QUESTION) == "<s>hi</s><unk>"


def test_a_header_may_have_no_template():
    assert not tokenizer_of("qwen2").has_chat_template


def test_tokens_may_be_empty():
    fields = header("qwen2")
    more = {"tokens": [*fields[GGML + "tokens"], "", ""], "token_type": [*fields[GGML + "token_type"], 5, 5]}
    assert gguf_tokenizer(header("qwen2", **more), FILE).encode("a b") == tokenizer_of("qwen2").encode("a b")


WRONG_TEMPLATES = [
    (["a"], "chat_template must be a text or a list with a default, and has 'default'"),
    ("{% iff %}", "chat template line 1: \"Encountered unknown tag 'iff'.\"; download the file again"),
]


@pytest.mark.parametrize(("template", "message"), WRONG_TEMPLATES)
def test_a_broken_template_is_one_line(template, message):
    with pytest.raises(CheckpointError) as caught:
        gguf_tokenizer(header("qwen2") | {"tokenizer.chat_template": template}, FILE).apply_chat_template(
            QUESTION
        )
    assert str(caught.value) == f"model.gguf: {message}"


def test_an_end_that_the_header_names_replaces_the_one_by_text():
    """Of the kinds that fill in the middle; other ends by text always count."""
    fields = header("qwen2")
    reponame = fields[GGML + "tokens"].index("<reponame>")
    assert reponame in gguf_tokenizer(fields, FILE).eos_token_ids
    assert reponame not in gguf_tokenizer(header("qwen2", fim_rep_token_id=9), FILE).eos_token_ids


N = len(GOLDENS["vocabularies"]["bytes"][GGML + "tokens"])
M = len(GOLDENS["vocabularies"]["pieces"][GGML + "tokens"])
NAMES, TOGETHER = "must be smollm", "must be two tokens that together"
GIVEN = "must be given: every text gets this token"
FINITE = f"must be a list of {M} finite numbers, one per token"
BROKEN = [
    ("qwen2", {"model": "bert"}, "model is 'bert' and must be gpt2 or llama"),
    ("qwen2", {"model": None, "tokens": None}, "model is missing and must be gpt2 or llama"),
    ("qwen2", {"pre": "tekken"}, f"pre is 'tekken' and {NAMES} or qwen2 or llama-bpe or gpt-2 or default"),
    ("qwen2", {"pre": ["qwen2"]}, f"pre is ['qwen2'] and {NAMES} or"),
    ("qwen2", {"tokens": None}, "tokens is missing and must be a list of texts"),
    ("qwen2", {"tokens": ["a", 1]}, "tokens is ['a', 1] and must be a list of texts"),
    ("qwen2", {"tokens": ["a", "b", "a"]}, "tokens[2] is 'a' and must be another text than token 0"),
    ("qwen2", {"tokens": ["a" * 1001]}, f"tokens[0] is '{'a' * 56}... and must be at most 1000 characters"),
    ("qwen2", {"merges": None}, "merges is missing and must be a list of texts"),
    ("qwen2", {"merges": "a b"}, "merges is 'a b' and must be a list of texts"),
    ("qwen2", {"merges": ["Ġ a", "ab"]}, f"merges[1] is 'ab' and {TOGETHER} are a third"),
    ("qwen2", {"merges": ["unmergeabl e"]}, f"merges[0] is 'unmergeabl e' and {TOGETHER}"),
    ("qwen2", {"merges": ["u nmergeable"]}, f"merges[0] is 'u nmergeable' and {TOGETHER}"),
    ("qwen2", {"merges": ["z q"]}, f"merges[0] is 'z q' and {TOGETHER} are a third"),
    ("qwen2", {"token_type": [1]}, f"token_type is [1] and must be a list of {N} whole numbers, one per"),
    ("qwen2", {"token_type": [True] * N}, "token_type is [True, "),
    ("qwen2", {"eos_token_id": N}, f"eos_token_id is {N} and must be an id below {N}"),
    ("qwen2", {"bos_token_id": -1}, f"bos_token_id is -1 and must be an id below {N}"),
    ("qwen2", {"eot_token_id": True}, f"eot_token_id is True and must be an id below {N}"),
    ("qwen2", {"fim_sep_token_id": "7"}, f"fim_sep_token_id is '7' and must be an id below {N}"),
    ("qwen2", {"add_bos_token": 1}, "add_bos_token is 1 and must be a bool"),
    ("llama-bpe", {"bos_token_id": None}, f"bos_token_id is missing and {GIVEN}"),
    ("gpt-2", {"eos_token_id": None}, f"eos_token_id is missing and {GIVEN}"),
    ("pieces", {"scores": None}, f"scores is missing and {FINITE}"),
    ("pieces", {"scores": [1.0]}, f"scores is [1.0] and {FINITE}"),
    ("pieces", {"scores": [float("nan"), *[0.0] * (M - 1)]}, "scores is [nan, "),
    ("pieces", {"scores": [-1000.0] * M}, "scores is [-1000.0, "),
    ("pieces", {"tokens": ["<unk>", "a"]}, "tokens is ['<0x00>', '<0x01>', "),
    ("pieces", {"add_space_prefix": "yes"}, "add_space_prefix is 'yes' and must be a bool"),
]


@pytest.mark.parametrize(("name", "changes", "message"), BROKEN, ids=lambda value: str(value)[:40])
def test_a_broken_header_is_one_line(name, changes, message):
    with pytest.raises(CheckpointError) as caught:
        gguf_tokenizer(header(name, **changes), FILE)
    line = str(caught.value)
    assert line.startswith(f"model.gguf: {GGML}{message}")
    assert line.endswith("; download the file again or choose another model") and len(line.splitlines()) == 1


JUNK = st.none() | st.booleans() | st.integers(-2, 2**40) | st.floats() | st.text(max_size=3)
PLACES = [(name, key) for name in ("llama-bpe", "pieces") for key in header(name)]


@settings(max_examples=50, deadline=None)
@given(st.sampled_from(PLACES), JUNK | st.lists(JUNK, max_size=3), st.integers(0), st.booleans())
def test_a_random_header_is_a_tokenizer_or_one_line(place, junk, index, inside):
    name, key = place
    fields = header(name)
    if inside and isinstance(fields[key], list):
        values = fields[key].copy()
        values[index % len(values)] = junk
        fields[key] = values
    else:
        fields[key] = junk
    try:
        assert gguf_tokenizer(fields, FILE).encode("a b")
    except CheckpointError as error:
        assert len(str(error).splitlines()) == 1
