"""The text of an answer while its tokens come in. Given."""

from collections.abc import Sequence

from ...tokenizer import Tokenizer
from .stop_strings import StopStrings


class AnswerText:
    """Joins tokens to text: whole characters only, and nothing of a stop string.

    Args:
        tokenizer: `detokenizer()` as on Day 1.6.
        stop: strings that end the text; they do not belong to it.

    Raises:
        TypeError: a stop string is no text.
        ValueError: a stop string is empty.
    """

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str] | str | None = None):
        self._stop = StopStrings([stop] if isinstance(stop, str) else stop or ())
        self._detokenizer = tokenizer.detokenizer()
        self.text = ""  # what may be shown; the end of it that could begin a stop string is held back

    @property
    def stopped(self) -> bool:
        """Whether a stop string is complete."""
        return self._stop.found

    def add(self, token: int) -> None:
        """Adds the text of one more token."""
        self.text += self._stop.add(self._detokenizer.add(token))

    def finish(self) -> None:
        """Delivers what was held back: no token follows."""
        self.text += self._stop.add(self._detokenizer.finish()) + self._stop.finish()
