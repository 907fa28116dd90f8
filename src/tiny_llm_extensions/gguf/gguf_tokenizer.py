"""The tokenizer and the chat template in the header of a GGUF file. Knows no tensors.

llama.cpp decides what is right (`src/llama-vocab.cpp` of ggml-org/llama.cpp). Different here:

- a text that begins with the beginning token gets no second one;
- of two added tokens that overlap in a text the left one is found; llama.cpp searches for the longer one first;
- an id that a header of byte-level BPE omits is unknown; llama.cpp takes 11, as in Falcon;
- a header that contradicts itself is an error; llama.cpp warns and goes on.
"""

from collections.abc import Mapping
from pathlib import Path

import tokenizers
from tokenizers import AddedToken, processors

from tiny_llm_engine.models.chat_template import ChatTemplate
from tiny_llm_engine.models.files import CheckpointError, Json, require
from tiny_llm_engine.models.tokenization import Tokenizer

from .gguf_bpe import GGML, flag, gguf_bpe, listed

NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4  # of `token_type`; 5 is unused, 6 a byte
# Characters of a token; in real files at most some hundred, and SentencePiece's are cut everywhere.
LONGEST = 1000
# The names that chat templates have for tokens.
TEMPLATE = "tokenizer.chat_template"
IN_TEMPLATES = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}
# Tokens that end a text whether or not the header names them: headers of chat models often name only one end.
END_TEXTS = {
    *("<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "[EOT]"),
    *("<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>", "_<EOT>", "<|end_of_text|>", "<eos>", "[EOS]"),
    *("<end_of_turn>", "<end_of_utterance>", "<｜end▁of▁sentence｜>"),
}
# Names of ends in the header, and the texts that such a token has where the header does not name one.
ENDS: dict[str, set[str]] = {
    "eos": set(),
    "eot": set(),
    "eom": set(),
    "fim_pad": {"<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"},
    "fim_rep": {"<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"},
    "fim_sep": {"<|file_sep|>"},
}


def gguf_tokenizer(fields: Json, file: Path) -> Tokenizer:
    """The tokenizer of a GGUF file: byte-level BPE ("gpt2") or SentencePiece ("llama").

    Args:
        fields: the header, as plain Python values.
        file: for messages.

    Raises:
        CheckpointError: the header has another kind of tokenizer, or contradicts itself.
    """
    try:
        model = fields.get(GGML + "model")
        require(GGML + "model", model, model in ("gpt2", "llama"), "gpt2 or llama")
        tokens = _tokens(fields)
        bpe, ids = gguf_bpe(fields, tokens), _ids(fields, len(tokens))
        ends = {tokens[text] for text in _end_texts(fields) if text in tokens}
        _add_tokens(bpe, tokens, _types(fields, len(tokens), ends))
        _add_bos_and_eos(bpe, fields, ids)
    except CheckpointError as error:
        raise CheckpointError(f"{file}: {error}; download the file again or choose another model") from None
    words = list(tokens)
    texts = {IN_TEMPLATES[name]: words[id] for name, id in ids.items() if name in IN_TEMPLATES}
    ends |= {id for name, id in ids.items() if name in ENDS}
    return Tokenizer(bpe, ends, _chat_template(fields, file, texts))


def _tokens(fields: Json) -> dict[str, int]:
    """The id of each token; an empty one, which no text has, gets a name."""
    texts = listed(fields, "tokens", {str}, "a list of texts")
    tokens: dict[str, int] = {}
    for id, text in enumerate(texts):
        known = tokens.setdefault(text or f"[EMPTY_{id}]", id)
        require(f"{GGML}tokens[{id}]", text, known == id, f"another text than token {known}")
        require(f"{GGML}tokens[{id}]", text, len(text) <= LONGEST, f"at most {LONGEST} characters")
    return tokens


def _ids(fields: Json, count: int) -> dict[str, int]:
    """The ids that the header names: "bos", "eos", …; of SentencePiece the first three are usual."""
    ids = {"unknown": 0, "bos": 1, "eos": 2} if fields[GGML + "model"] == "llama" else {}
    for name in (*IN_TEMPLATES, *ENDS):
        key = f"{GGML}{name}_token_id"
        if key in fields:
            ids[name] = fields[key]
        if name in ids:
            require(key, ids[name], type(ids[name]) is int and 0 <= ids[name] < count, f"an id below {count}")
    return ids


def _end_texts(fields: Json) -> set[str]:
    return END_TEXTS.union(*(texts for name, texts in ENDS.items() if f"{GGML}{name}_token_id" not in fields))


def _types(fields: Json, count: int, ends: set[int]) -> list[int]:
    """The type of each token."""
    types = [NORMAL] * count
    if GGML + "token_type" in fields:
        wanted = f"a list of {count} whole numbers, one per token"
        types = list(listed(fields, "token_type", {int}, wanted))
        require(GGML + "token_type", types, len(types) == count, wanted)
    for id in ends:
        types[id] = CONTROL  # some converters forget it
    return types


def _add_tokens(bpe: tokenizers.Tokenizer, tokens: Mapping[str, int], types: list[int]) -> None:
    """Make the library find the added tokens in a text before it splits the text."""

    def of(*wanted: int) -> list[AddedToken]:
        return [AddedToken(text, normalized=False) for text, id in tokens.items() if types[id] in wanted]

    bpe.add_special_tokens(of(UNKNOWN, CONTROL))  # `decode` can leave them out
    bpe.add_tokens(of(USER_DEFINED))


def _add_bos_and_eos(bpe: tokenizers.Tokenizer, fields: Json, ids: Mapping[str, int]) -> None:
    """Adds the begin and end tokens that the file's header requires."""
    begins = fields[GGML + "model"] == "llama" or fields.get(GGML + "pre") == "llama-bpe"
    bos = ["bos"] * flag(fields, "add_bos_token", begins)
    eos = ["eos"] * flag(fields, "add_eos_token", False)
    for name in bos + eos:
        require(f"{GGML}{name}_token_id", ids.get(name), name in ids, "given: every text gets this token")
    if bos + eos:
        tokens = [
            {"id": name, "ids": [ids[name]], "tokens": [bpe.id_to_token(ids[name])]} for name in bos + eos
        ]
        bpe.post_processor = processors.TemplateProcessing(single=[*bos, "$A", *eos], special_tokens=tokens)


def _chat_template(fields: Json, file: Path, special_tokens: Mapping[str, str]) -> ChatTemplate | None:
    """The template without a name, and those with one; None if it has none."""
    sources = {
        key.removeprefix(f"{TEMPLATE}."): text
        for key, text in fields.items()
        if key.startswith(f"{TEMPLATE}.")
    }
    if TEMPLATE in fields:
        sources["default"] = fields[TEMPLATE]
    return ChatTemplate(sources, file, special_tokens) if sources else None
