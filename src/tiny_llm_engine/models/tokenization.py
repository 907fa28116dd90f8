"""Text to token ids and back, from the `tokenizer.json` of a model folder."""

import codecs
import json
import re
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from pathlib import Path

import tokenizers
from tokenizers import decoders
from tokenizers.pre_tokenizers import ByteLevel

from .chat_template import ChatTemplate, ChatTemplateError, plain_message, read_chat_template
from .files import CheckpointError, Json, read_optional_json, shown
from .special_tokens import add_special_tokens


def _byte_of_character() -> dict[str, int]:
    """The byte of each character of byte-level BPE: printable Latin-1 is itself, the others are U+0100 and up."""
    alphabet = sorted(ByteLevel.alphabet())
    itself = [ord(character) for character in alphabet if ord(character) < 256]
    others = [byte for byte in range(256) if byte not in itself]
    return dict(zip(alphabet, itself + others, strict=True))


BYTE_OF_CHARACTER = _byte_of_character()


def bytes_of_token(token: str) -> bytes:
    """The bytes of a token of a byte-level vocabulary; an added token may be plain text."""
    if all(character in BYTE_OF_CHARACTER for character in token):
        return bytes(BYTE_OF_CHARACTER[character] for character in token)
    return token.encode()


def bytes_of_piece(token: str) -> bytes:
    """The bytes of a SentencePiece token (Llama 2, older Mistrals): "▁" is a space, "<0x0A>" a byte."""
    if re.fullmatch(r"<0x[0-9A-F]{2}>", token):
        return bytes([int(token[3:5], 16)])
    return token.replace("▁", " ").encode()


class StreamDetokenizer:
    """Turns a stream of tokens into pieces of text; joined, they equal the decoded list of all ids.

    The work per token does not depend on the number of tokens before it: only the bytes of an incomplete character are
    kept, at most three.

    Args:
        bytes_of: returns the bytes of a token id, empty for special tokens.
        drops_first_space: whether a space at the start, which SentencePiece puts before a text, is dropped.
    """

    def __init__(self, bytes_of: Callable[[int], bytes], drops_first_space: bool = False):
        self._bytes_of, self._drops_space = bytes_of, drops_first_space
        # Invalid bytes, which a model can produce, become U+FFFD, one per broken sequence.
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, token_id: int) -> str:
        """The text that this token completes: "" while a character is incomplete."""
        text = self._decoder.decode(self._bytes_of(token_id))
        if text and self._drops_space:
            self._drops_space = False
            return text.removeprefix(" ")
        return text

    def finish(self) -> str:
        """The text of an incomplete character at the end: "" or one U+FFFD."""
        return self._decoder.decode(b"", final=True)


LONG_TEXT = 2000  # characters
# The decoder of a tokenizer that was converted from SentencePiece; some lack the last step.
PIECES = [
    {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
    {"type": "ByteFallback"},
    {"type": "Fuse"},
    {"type": "Strip", "content": " ", "start": 1, "stop": 0},
]


class Tokenizer:
    """A BPE tokenizer with its chat template: byte-level, or SentencePiece with byte fallback.

    Args:
        bpe: the tokenizer of the `tokenizers` library.
        eos_token_ids: every id that ends a text.
        chat_template: None if the model has none.
    """

    def __init__(
        self,
        bpe: tokenizers.Tokenizer,
        eos_token_ids: Iterable[int] = (),
        chat_template: ChatTemplate | None = None,
    ):
        self._bpe = bpe
        # tokenizer.json keeps those of a training run; transformers resets them before each encoding too.
        bpe.no_truncation()
        bpe.no_padding()
        self.eos_token_ids = frozenset(eos_token_ids)
        self._chat_template = chat_template
        self._begin = bpe.encode("").ids[:1]  # what the tokenizer puts before every text
        steps = decoder_steps(bpe)
        self._has_pieces, self._drops_space = steps[:3] == PIECES[:3], steps == PIECES
        added = bpe.get_added_tokens_decoder()
        self._special_ids = frozenset(id for id, token in added.items() if token.special)

    @property
    def vocab_size(self) -> int:
        """The number of tokens, added ones included; a model's embedding may have more rows."""
        return self._bpe.get_vocab_size(with_added_tokens=True)

    @cached_property
    def longest_token(self) -> int:
        """Characters of a text that one token covers, at most."""
        return max(map(len, self._bpe.get_vocab(with_added_tokens=True)), default=1)

    def has_special(self, ids: Sequence[int]) -> bool:
        """Whether there is a special token after the one that begins every text, as in a rendered conversation."""
        first = len(self._begin) if list(ids[: len(self._begin)]) == self._begin else 0
        return not self._special_ids.isdisjoint(ids[first:])

    @property
    def has_chat_template(self) -> bool:
        return self._chat_template is not None

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text. Special tokens that a chat template wrote into the text become single ids.

        Args:
            add_special_tokens: whether the tokenizer may put its own before the text.
        """
        # A lone surrogate (from bytes on a command line, or a client's JSON) is not text: U+FFFD, as in decoding.
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        plain = self._encode(text, False)
        # A chat template has added begin-of-text already; a second one would be noise to the model.
        is_rendered = plain[: len(self._begin)] == self._begin
        return plain if is_rendered or not add_special_tokens else self._encode(text, True)

    def _encode(self, text: str, add_special_tokens: bool) -> list[int]:
        if len(text) < LONG_TEXT:
            return self._bpe.encode(text, add_special_tokens=add_special_tokens).ids
        # As a batch, which takes a little longer to begin: it alone releases the interpreter's lock while it works.
        [encoding] = self._bpe.encode_batch([text], add_special_tokens=add_special_tokens)
        return encoding.ids

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of token ids; special tokens are left out, or are text too."""
        if not self._has_pieces:
            return self._bpe.decode(list(ids), skip_special_tokens=skip_special_tokens)
        # If one byte is broken, the library replaces the whole run of bytes, valid characters included.
        stream = self.detokenizer(skip_special_tokens=skip_special_tokens)
        return "".join([*map(stream.add, ids), stream.finish()])

    def detokenizer(self, *, skip_special_tokens: bool = True) -> StreamDetokenizer:
        """A new decoder for one stream of tokens; special tokens are left out, or are text too."""
        bytes_of = self._bytes_unless_special if skip_special_tokens else self.bytes_of
        return StreamDetokenizer(bytes_of, self._drops_space)

    def to_json(self) -> str:
        """The text of `tokenizer.json`."""
        return self._bpe.to_str()

    def apply_chat_template(
        self, messages: Sequence[Json], add_generation_prompt: bool = True, **names: object
    ) -> str:
        """The prompt for a conversation of `{"role": …, "content": …}`, ready for `encode`.

        Args:
            messages: as OpenAI's API has them, see `plain_message`.
            add_generation_prompt: whether it ends where the assistant's turn begins.
            names: further variables of the template.

        Raises:
            ChatTemplateError: there is no template, or it fails on these messages.
            ValueError: a message has no text.
        """
        return self.template.render([*map(plain_message, messages)], add_generation_prompt, **names)

    @property
    def template(self) -> ChatTemplate:
        """The chat template. Raises ChatTemplateError without one."""
        if self._chat_template is None:
            raise ChatTemplateError(
                None,
                "the model has no chat template (chat_template of tokenizer_config.json, chat_template.jinja, or "
                "tokenizer.chat_template of a GGUF file); give a plain prompt or choose a chat model",
            )
        return self._chat_template

    def use_chat_template(self, template: str) -> None:
        """Use another chat template than the model's own.

        Args:
            template: a file with Jinja, or its text.

        Raises:
            CheckpointError: there is no such file.
        """
        file = Path(template)
        is_text = "{" in template  # of Jinja; vLLM takes it on its command line too
        if not is_text and not file.is_file():
            raise CheckpointError(f"--chat-template {template}: no such file, and no Jinja")
        source = template if is_text else file.read_text(encoding="utf-8")
        tokens = {} if self._chat_template is None else self._chat_template.special_tokens
        self._chat_template = ChatTemplate({"default": source}, file, tokens)

    @property
    def chat_template(self) -> str:
        """The text of the chat template; empty without one."""
        return "" if self._chat_template is None else self._chat_template.source

    def token_id(self, text: str) -> int | None:
        """The id of the token with this text; None without one."""
        return self._bpe.token_to_id(text)

    def text_of(self, token_id: int) -> str:
        """The text of one token, special tokens included; "�" if it is not a whole character."""
        return self.decode([token_id], skip_special_tokens=False)

    def _bytes_unless_special(self, token_id: int) -> bytes:
        return b"" if token_id in self._special_ids else self.bytes_of(token_id)

    def bytes_of(self, token_id: int) -> bytes:
        """The bytes of a token, which may be a part of a character; a special token has those of its text."""
        token = self._bpe.id_to_token(token_id)
        # None: the embedding has a row for this id, but the tokenizer has no token.
        if token is None:
            return b""
        return bytes_of_piece(token) if self._has_pieces else bytes_of_token(token)


def decoder_steps(bpe: tokenizers.Tokenizer) -> list[dict]:
    """The steps by which the library turns tokens into text, as in `tokenizer.json`."""
    decoder = json.loads(bpe.decoder.__getstate__()) if bpe.decoder is not None else {}
    return decoder["decoders"] if decoder.get("type") == "Sequence" else [decoder]


def folder_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer of a model folder.

    Raises:
        CheckpointError: `tokenizer.json` is absent, damaged or of another kind; or another file contradicts it.
    """
    bpe = _read_bpe(folder / "tokenizer.json")
    settings = read_optional_json(folder / "tokenizer_config.json")
    rows = read_optional_json(folder / "config.json").get("vocab_size")
    rows = rows if isinstance(rows, int) else None
    _check_vocabulary(folder, bpe, rows)
    special_tokens = add_special_tokens(folder, settings, bpe, rows)
    return Tokenizer(
        bpe,
        eos_token_ids=_eos_token_ids(folder, bpe, special_tokens.get("eos_token")),
        chat_template=read_chat_template(folder, settings, special_tokens),
    )


def _read_bpe(file: Path) -> tokenizers.Tokenizer:
    if not file.is_file():
        raise CheckpointError(f"{file}: not found; check the path, or download the model again")
    try:
        bpe = tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises nothing narrower
        raise CheckpointError(f"{file}: {shown(str(error))}; download the file again") from None
    if decoder_steps(bpe) not in (PIECES, PIECES[:3]) and not isinstance(bpe.decoder, decoders.ByteLevel):
        raise CheckpointError(
            f"{file}: decoder must be ByteLevel, as in Qwen and Llama 3, or that of Llama 2 and Mistral (Replace, "
            "ByteFallback, Fuse, Strip); choose a model with such a tokenizer"
        )
    return bpe


def _check_vocabulary(folder: Path, bpe: tokenizers.Tokenizer, rows: int | None) -> None:
    """Reject ids beyond the embedding's last row: they would fail much later, or on a GPU read other memory."""
    largest = max(bpe.get_vocab(with_added_tokens=True).values(), default=0)
    if rows is not None and largest >= rows:
        raise CheckpointError(
            f"{folder / 'tokenizer.json'}: has token ids up to {largest}, but vocab_size of config.json is {rows}; "
            "one of the two is of another model: download both again"
        )


def _eos_token_ids(folder: Path, bpe: tokenizers.Tokenizer, eos_token: str | None) -> set[int]:
    """The end tokens from all files of the folder; a chat model also has one that ends its turn."""
    ids = set()
    for file in (folder / "generation_config.json", folder / "config.json"):
        value = read_optional_json(file).get("eos_token_id")
        values = value if isinstance(value, list) else [] if value is None else [value]
        if not all(type(id) is int and id >= 0 for id in values):
            raise CheckpointError(
                f"{file}: eos_token_id {shown(value)} must be an id or a list of ids; correct it"
            )
        ids.update(values)
    id = None if eos_token is None else bpe.token_to_id(eos_token)
    return ids if id is None else {*ids, id}
