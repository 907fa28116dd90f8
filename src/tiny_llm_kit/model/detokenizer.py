"""Token ids to text while they arrive. A character of several bytes may be spread over several tokens."""

import codecs
import re
from collections.abc import Callable

from tokenizers.pre_tokenizers import ByteLevel


def _byte_of_character() -> dict[str, int]:
    """Byte-level BPE writes bytes as characters: printable Latin-1 as itself, the others from U+0100 on, in order."""
    alphabet = sorted(ByteLevel.alphabet())
    itself = [ord(character) for character in alphabet if ord(character) < 256]
    others = [byte for byte in range(256) if byte not in itself]
    return dict(zip(alphabet, itself + others, strict=True))


BYTE_OF_CHARACTER = _byte_of_character()


def bytes_of_token(token: str) -> bytes:
    """The bytes that a token of a byte-level vocabulary stands for; an added token may be plain text."""
    if all(character in BYTE_OF_CHARACTER for character in token):
        return bytes(BYTE_OF_CHARACTER[character] for character in token)
    return token.encode()


def bytes_of_piece(token: str) -> bytes:
    """The bytes of a token as SentencePiece writes it (Llama 2, older Mistrals): "▁" is a space, "<0x0A>" a byte."""
    if re.fullmatch(r"<0x[0-9A-F]{2}>", token):
        return bytes([int(token[3:5], 16)])
    return token.replace("▁", " ").encode()


class StreamDetokenizer:
    """Text pieces of one stream of tokens; joined they are what decoding all ids at once gives.

    The work per token does not depend on how many came before: only the bytes of an unfinished
    character wait here, three at most.

    Args:
        bytes_of: the bytes of a token id, empty for special tokens.
        drops_first_space: the first character goes if it is a space, which SentencePiece puts before a text.
    """

    def __init__(self, bytes_of: Callable[[int], bytes], drops_first_space: bool = False):
        self._bytes_of, self._drops_space = bytes_of, drops_first_space
        # Bytes that no text has (a model can produce them) become U+FFFD, one for each broken sequence.
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, token_id: int) -> str:
        """The text that this token completes: "" while a character is unfinished."""
        text = self._decoder.decode(self._bytes_of(token_id))
        if text and self._drops_space:
            self._drops_space = False
            return text.removeprefix(" ")
        return text

    def finish(self) -> str:
        """What an unfinished character leaves at the end: "" or one U+FFFD."""
        return self._decoder.decode(b"", final=True)
