"""Tokenizers as Llama and Mistral have them, built here: one beginning, several ends, and SentencePiece's pieces."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, processors, trainers

from tiny_llm_engine.models.tokenizer import load_tokenizer

fuzz = settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
TEXTS = ["a queue of requests waits, café; the next step serves it\n"] * 9
PIECES = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
LLAMA3 = (
    "{{ bos_token }}{% for message in messages %}<|start_header_id|>{{ message.role }}<|end_header_id|>\n\n"
    "{{ message.content | trim }}<|eot_id|>{% endfor %}"
)
MISTRAL = "{{ bos_token }}{% for message in messages %}[INST] {{ message.content }} [/INST]{% endfor %}"
QUESTION = [{"role": "user", "content": "a queue"}]


def begins_with(bpe: Tokenizer, bos: str) -> Tokenizer:
    """The post-processor of Llama and Mistral: every text that is encoded begins with `bos`."""
    bpe.post_processor = processors.TemplateProcessing(
        single=f"{bos} $A", special_tokens=[(bos, bpe.token_to_id(bos))]
    )
    return bpe


def written(folder, bpe: Tokenizer, template: str, **fields):
    """The files of a tokenizer; `config.json` says nothing of it."""
    bpe.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"chat_template": template} | fields), encoding="utf-8"
    )
    return load_tokenizer(folder)


@pytest.fixture
def llama3(bpe) -> Tokenizer:
    """Byte-level, as Llama 3's: its beginning and its ends are added tokens."""
    bpe = Tokenizer.from_str(bpe.to_str())
    names = ["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>"]
    bpe.add_special_tokens([AddedToken(name, special=True) for name in names])
    return begins_with(bpe, "<|begin_of_text|>")


@pytest.fixture(scope="module")
def pieces() -> Tokenizer:
    """A BPE over characters with "▁" for spaces and bytes to fall back on, as Llama 2's and Mistral's."""
    trained = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    trained.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    special = ["<unk>", "<s>", "</s>", *[f"<0x{byte:02X}>" for byte in range(256)]]
    trained.train_from_iterator(
        TEXTS, trainers.BpeTrainer(vocab_size=330, special_tokens=special, show_progress=False)
    )
    data = json.loads(trained.to_str())
    # A trainer makes all of them special; in real files the bytes are ordinary tokens.
    data["added_tokens"] = data["added_tokens"][:3]
    bpe = Tokenizer.from_str(json.dumps(data))
    bpe.decoder = decoders.Sequence([*PIECES, decoders.Strip(" ", 1, 0)])
    return begins_with(bpe, "<s>")


@pytest.mark.parametrize("fields", [{"bos_token": "<|begin_of_text|>"}, {"bos_token": None}, {}])
def test_a_text_begins_once(tmp_path, llama3, fields):
    """Whether or not `tokenizer_config.json` names the beginning: what counts is what the tokenizer adds."""
    tokenizer = written(tmp_path, llama3, LLAMA3, **fields)
    bos = llama3.token_to_id("<|begin_of_text|>")
    plain = llama3.encode("a queue", add_special_tokens=False).ids
    assert tokenizer.encode("a queue") == [bos, *plain]
    assert tokenizer.encode("<|begin_of_text|>a queue") == [bos, *plain]
    assert tokenizer.encode("") == [bos]


def test_a_template_of_llama_3_begins_once(tmp_path, llama3):
    tokenizer = written(tmp_path, llama3, LLAMA3, bos_token="<|begin_of_text|>", eos_token="<|eot_id|>")
    rendered = tokenizer.apply_chat_template(QUESTION)
    assert rendered.startswith("<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\na queue")
    names = [llama3.id_to_token(id) for id in tokenizer.encode(rendered)]
    assert names[:4] == ["<|begin_of_text|>", "<|start_header_id|>", *names[2:4]]
    assert names.count("<|begin_of_text|>") == 1 and names[-1] == "<|eot_id|>"
    assert tokenizer.encode(rendered) == llama3.encode(rendered, add_special_tokens=False).ids


def test_a_template_of_mistral_begins_once(tmp_path, pieces):
    tokenizer = written(tmp_path, pieces, MISTRAL, bos_token="<s>", eos_token="</s>")
    ids = tokenizer.encode(tokenizer.apply_chat_template(QUESTION))
    assert ids[0] == pieces.token_to_id("<s>") and ids.count(ids[0]) == 1


def test_a_template_without_a_beginning_gets_one(tmp_path, pieces):
    tokenizer = written(tmp_path, pieces, "{{ messages[0].content }}", bos_token="<s>")
    ids = tokenizer.encode(tokenizer.apply_chat_template(QUESTION))
    assert ids == [pieces.token_to_id("<s>"), *pieces.encode("a queue", add_special_tokens=False).ids]


def test_an_end_behind_every_text_is_no_beginning(tmp_path, pieces):
    bpe = Tokenizer.from_str(pieces.to_str())
    bpe.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    tokenizer = written(tmp_path, bpe, MISTRAL, bos_token="<s>")
    assert tokenizer.encode("<s>a").count(1) == 1


def test_llama_3_has_several_ends(tmp_path, llama3):
    """Llama 3.1's generation_config.json names three; tokenizer_config.json one of them."""
    ends = [llama3.token_to_id(name) for name in ("<|end_of_text|>", "<|eot_id|>")]
    (tmp_path / "generation_config.json").write_text(
        json.dumps({"eos_token_id": [*ends, 7]}), encoding="utf-8"
    )
    tokenizer = written(tmp_path, llama3, LLAMA3, eos_token="<|eot_id|>")
    assert tokenizer.eos_token_ids == {*ends, 7}


def streamed(tokenizer, ids: list[int]) -> str:
    stream = tokenizer.detokenizer()
    return "".join([*map(stream.add, ids), stream.finish()])


@fuzz
@given(text=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="▁")))
def test_any_text_comes_back_from_pieces(tmp_path, pieces, text):
    """Characters that no piece has go through their bytes; the library's decoding is the oracle."""
    tokenizer = written(tmp_path, pieces, MISTRAL)
    ids = tokenizer.encode(text)
    expected = pieces.decode(ids)
    assert streamed(tokenizer, ids) == tokenizer.decode(ids) == expected
    if not any(name in text for name in ("<s>", "</s>", "<unk>")):
        assert expected == text


def test_the_first_space_goes_and_no_other(tmp_path, pieces):
    tokenizer = written(tmp_path, pieces, MISTRAL)
    ids = tokenizer.encode("  a  queue")
    stream = tokenizer.detokenizer()
    assert "".join(map(stream.add, ids)) == "  a  queue" == pieces.decode(ids)


def test_pieces_without_the_last_step_keep_the_first_space(tmp_path, pieces):
    bpe = Tokenizer.from_str(pieces.to_str())
    bpe.decoder = decoders.Sequence(PIECES)
    tokenizer = written(tmp_path, bpe, MISTRAL)
    ids = tokenizer.encode("a queue")
    assert streamed(tokenizer, ids) == " a queue" == bpe.decode(ids)


def test_a_character_of_bytes_appears_with_its_last_one(tmp_path, pieces):
    tokenizer = written(tmp_path, pieces, MISTRAL)
    ids = [pieces.token_to_id(f"<0x{byte:02X}>") for byte in "😀".encode()]
    stream = tokenizer.detokenizer()
    assert [*map(stream.add, ids), stream.finish()] == ["", "", "", "😀", ""]


def test_a_broken_byte_spoils_no_whole_character(tmp_path, pieces):
    """The library gives up the whole run of bytes; a stream cannot know what follows, and keeps what was whole."""
    tokenizer = written(tmp_path, pieces, MISTRAL)
    ids = [pieces.token_to_id(f"<0x{byte:02X}>") for byte in [*"é".encode(), 0xFF]]
    assert streamed(tokenizer, ids) == tokenizer.decode(ids) == "é\ufffd"
