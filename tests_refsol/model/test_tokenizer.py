"""Text to ids and back, whole and streamed, with the library's own decoding as the oracle."""

import json
import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Bpe
from tokenizers import processors

from tiny_llm_engine.models.files import CheckpointError
from tiny_llm_engine.models.tokenization import Tokenizer
from tiny_llm_engine.models.tokenizer import load_tokenizer

fuzz = settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
TEXT = st.text(
    st.characters(exclude_categories=["Cs"])
)  # all of Unicode but lone surrogates, which no text has


@pytest.fixture(scope="module")
def tokenizer(bpe: Bpe) -> Tokenizer:
    return Tokenizer(bpe)


def streamed(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    detokenizer = tokenizer.detokenizer()
    return [*map(detokenizer.add, ids), detokenizer.finish()]


def without_special(text: str) -> str:
    return re.sub(r"<\|(endoftext|im_start|im_end)\|>", "", text)


@fuzz
@given(text=TEXT)
def test_any_text_comes_back(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text)) == without_special(text)


def test_half_a_surrogate_pair_becomes_a_replacement(tokenizer):
    assert tokenizer.decode(tokenizer.encode("a\ud83db")) == "a\ufffdb"
    assert tokenizer.decode(tokenizer.encode("a\ud83d\ude02b")) == "a😂b"


@fuzz
@given(text=TEXT)
def test_a_stream_never_shows_half_a_character(tokenizer, text):
    pieces = streamed(tokenizer, tokenizer.encode(text))
    # Half a character would be a U+FFFD that the text has not.
    assert "".join(pieces) == without_special(text)


@fuzz
@given(ids=st.lists(st.integers(0, 310)))
def test_a_stream_of_any_ids_is_their_decoding(tokenizer, ids):
    """A model may emit any sequence: broken UTF-8, special tokens, and rows past the vocabulary."""
    assert "".join(streamed(tokenizer, ids)) == tokenizer.decode(ids)


def test_a_character_appears_with_its_last_byte(tokenizer, bpe):
    smile = [
        bpe.token_to_id(character) for character in "ðŁĺĤ"
    ]  # F0 9F 98 82, as a byte-level BPE writes them
    assert streamed(tokenizer, smile) == ["", "", "", "😂", ""]
    assert streamed(tokenizer, smile[:3]) == ["", "", "", "\ufffd"]


def test_a_stream_does_not_pile_up_broken_bytes(tokenizer, bpe):
    """If bytes that never become a character waited for the next, the work per token would grow."""
    detokenizer = tokenizer.detokenizer()
    continuation = bpe.token_to_id("Ģ")  # 80, with which no character begins
    assert {detokenizer.add(continuation) for _ in range(1000)} == {"\ufffd"}


def test_special_tokens_are_parsed_and_not_shown(tokenizer, bpe):
    ids = tokenizer.encode("<|im_start|>a<think><|im_end|>")
    start, end = bpe.token_to_id("<|im_start|>"), bpe.token_to_id("<|im_end|>")
    assert ids == [start, bpe.token_to_id("a"), bpe.token_to_id("<think>"), end]
    assert tokenizer.decode(ids) == "a<think>" == "".join(streamed(tokenizer, ids))


def test_the_vocabulary_counts_added_tokens(tokenizer, bpe):
    assert tokenizer.vocab_size == 298 == max(bpe.get_vocab().values()) + 1


def test_what_a_training_run_saved_changes_no_prompt(folder, bpe):
    """Truncation would cut a prompt, and padding fill it up, without a word; transformers resets both."""
    text = "a queue of requests waits"
    expected = load_tokenizer(str(folder)).encode(text)
    for name, size in (("enable_truncation", {"max_length": 2}), ("enable_padding", {"length": 64})):
        getattr(saved := Bpe.from_str(bpe.to_str()), name)(**size)
        saved.save(str(folder / "tokenizer.json"))
        assert load_tokenizer(str(folder)).encode(text) == expected


def test_the_beginning_is_not_written_twice(folder, edit, bpe):
    bos = bpe.token_to_id("<|endoftext|>")
    bpe = Bpe.from_str(bpe.to_str())
    bpe.post_processor = processors.TemplateProcessing(
        single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", bos)]
    )
    bpe.save(str(folder / "tokenizer.json"))
    edit("tokenizer_config.json", bos_token={"content": "<|endoftext|>"})
    tokenizer = load_tokenizer(folder)
    assert tokenizer.encode("a") == tokenizer.encode("<|endoftext|>a") == [bos, bpe.token_to_id("a")]


ENDS = [
    (..., ..., ..., set()),
    (0, ..., ..., {0}),
    ([0, 2], ..., ..., {0, 2}),
    (..., 1, ..., {1}),
    ([0], [1], "<|im_end|>", {0, 1, 2}),
    (..., None, {"content": "<|im_end|>"}, {2}),
    (..., ..., None, set()),
]


@pytest.mark.parametrize(("generation", "config", "settings_token", "expected"), ENDS)
def test_every_end_counts(folder, edit, generation, config, settings_token, expected):
    edit("generation_config.json", eos_token_id=generation)
    edit("config.json", eos_token_id=config)
    edit("tokenizer_config.json", eos_token=settings_token)
    assert load_tokenizer(folder).eos_token_ids == expected


BOS, END = "<|endoftext|>", "<|im_end|>"
NAMES = (
    "{{ bos_token }}|{{ eos_token }}|{{ unk_token }}|{{ image_token }}|{{ pad_token }}|"
    "{% for m in messages %}{{ m.content }}{% endfor %}"
)
FILES = {"config": "tokenizer_config.json", "map": "special_tokens_map.json", "added": "added_tokens.json"}
# What the files of a folder say of tokens.
ADDED = {"0": {"content": BOS, "special": True}, "298": {"content": "<a>"}}
DECODED = {"eos_token": BOS, "added_tokens_decoder": ADDED}
ADDED_END, ADDITIONAL = {"__type": "AddedToken", "content": END}, "additional_special_tokens"
TOKEN_FILES = {
    "tokenizer_config alone": {"config": {"bos_token": BOS, "eos_token": ADDED_END}},
    "special_tokens_map alone": {"map": {"bos_token": BOS, "eos_token": {"content": END}}},
    "the map wins": {"config": {"eos_token": BOS, "unk_token": BOS}, "map": {"eos_token": END}},
    "the map is not read beside added_tokens_decoder": {"config": DECODED, "map": {"eos_token": END}},
    "added_tokens.json": {"added": {"<b>": 299, "<a>": 298}, "map": {"eos_token": "<b>"}},
    "extra_special_tokens is a list": {"config": {"extra_special_tokens": ["<a>", END], "eos_token": END}},
    ADDITIONAL: {"config": {ADDITIONAL: ["<a>"]}, "map": {ADDITIONAL: ["<b>"]}},
    "extra_special_tokens has names": {"config": {"extra_special_tokens": {"image_token": "<a>"}}},
    "a token of another name": {"config": {"image_token": "<a>", "pad_token": "<pad>"}},
    "an ordinary token becomes special": {"map": {"unk_token": "a", "pad_token": "<think>"}},
    "the class has tokens": {"config": {"tokenizer_class": "GPT2Tokenizer"}},
}


@pytest.mark.parametrize("files", TOKEN_FILES.values(), ids=TOKEN_FILES.keys())
def test_tokens_are_read_from_every_file_as_transformers_reads_them(folder, edit, files):
    from transformers import AutoTokenizer  # takes seconds

    plain = {"tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(plain), encoding="utf-8")
    for name, fields in files.items():
        edit(FILES[name], **fields)
    (folder / "chat_template.jinja").write_text(NAMES, encoding="utf-8")
    theirs, ours = AutoTokenizer.from_pretrained(folder), load_tokenizer(folder)
    chat = [{"role": "user", "content": "<a>x<b><|im_end|>a<pad>"}]
    rendered = ours.apply_chat_template(chat)
    assert rendered == theirs.apply_chat_template(chat, tokenize=False)
    assert ours.eos_token_ids == {theirs.eos_token_id} - {None}
    if type(theirs).__name__ == "GPT2Tokenizer":
        return  # transformers builds this class anew, with other rules for splitting texts
    ids = ours.encode(rendered)
    assert ids == theirs.encode(rendered, add_special_tokens=False)
    for skip in (True, False):
        assert ours.decode(ids, skip_special_tokens=skip) == theirs.decode(ids, skip_special_tokens=skip)


def test_a_token_without_a_row_is_not_added(folder, edit):
    """Older checkpoints name a padding token that no embedding has; it is text, as in a prompt without it."""
    edit("config.json", vocab_size=299)
    edit("tokenizer_config.json", pad_token="<pad>", extra_special_tokens=["<more>"])
    tokenizer = load_tokenizer(folder)
    assert tokenizer.encode("<pad>") == [298] and len(tokenizer.encode("<more>")) > 1


OTHER_DECODER = {"tokenizer.json": {"decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True}}}
TEXT_AS_ID = {"generation_config.json": {"eos_token_id": ["<|im_end|>"]}}
# And the embedding has no row for it.
NO_END = {"tokenizer_config.json": {"eos_token": "<|end_of_all|>"}, "config.json": {"vocab_size": 298}}
BROKEN = {
    "tokenizer.json: decoder must be ByteLevel, as in Qwen and Llama 3, or that of Llama 2 and Mistral "
    "(Replace, ByteFallback, Fuse, Strip); choose a model with such a tokenizer": OTHER_DECODER,
    "tokenizer.json: has token ids up to 297, but vocab_size of config.json is 200; "
    "one of the two is of another model: download both again": {"config.json": {"vocab_size": 200}},
    "generation_config.json: eos_token_id ['<|im_end|>'] must be an id or a list of ids; correct it": TEXT_AS_ID,
    "tokenizer_config.json: eos_token '<|end_of_all|>' is not in tokenizer.json; download both again": NO_END,
}


def refusal(folder) -> str:
    with pytest.raises(CheckpointError) as caught:
        load_tokenizer(folder)
    return str(caught.value)


@pytest.mark.parametrize(("message", "files"), BROKEN.items(), ids=[*BROKEN])
def test_a_broken_tokenizer_gets_one_line(folder, edit, message, files):
    for file, fields in files.items():
        edit(file, **fields)
    assert refusal(folder) == f"{folder}/{message}"


def test_no_tokenizer(folder):
    (folder / "tokenizer.json").unlink()
    says = "tokenizer.json: not found; check the path, or download the model again"
    assert refusal(folder) == f"{folder}/{says}"


def test_a_tokenizer_that_the_library_refuses_gets_one_line(folder, edit):
    edit("tokenizer.json", model={"type": "abacus"})
    with pytest.raises(CheckpointError, match=r"^.*/tokenizer\.json: '.*; download the file again$"):
        load_tokenizer(folder)
