"""The tokenizer as the engine reads it. Given, for both ports and the policy."""

from collections.abc import Collection
from typing import Protocol


class Detokenizer(Protocol):
    """Turns a stream of ids into pieces of text, none of which ends inside a character."""

    def add(self, token: int, /) -> str:
        """The text that one more id completes."""
        ...

    def finish(self) -> str:
        """What is left at the end."""
        ...


class Tokenizer(Protocol):
    """Text to ids, and ids to text as they come."""

    @property
    def eos_token_ids(self) -> Collection[int]:
        """The ids that end a text."""
        ...

    def encode(self, text: str, /) -> list[int]:
        """The ids of a text."""
        ...

    def detokenizer(self, *, skip_special_tokens: bool = True) -> Detokenizer:
        """A detokenizer for one answer."""
        ...
