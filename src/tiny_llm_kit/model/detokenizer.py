"""Streaming detokenizer: token ids to text, where one character may extend over several tokens."""

import codecs
import re
from collections.abc import Callable

from tokenizers.pre_tokenizers import ByteLevel


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
