"""The text of an answer while its tokens come in, up to the first stop string. Given."""

from collections.abc import Sequence

from .sampling import SamplingParams
from .tokenizer import Tokenizer


class StopStrings:
    """Passes on a stream of text until one of `stop` appears in it.

    The end of the text so far may be the beginning of a stop string, so it is held back until that is decided.

    Args:
        stop: the strings; without any, all text is passed on at once.
        include: whether the string that ends the text is passed on too.
        min_pieces: so many pieces are passed on before a string is looked for; it may begin in them.

    Attributes:
        found: the string that has ended the text; None before.
    """

    def __init__(self, stop: Sequence[str] = (), *, include: bool = False, min_pieces: int = 0):
        self.stop = tuple(stop)
        if not all(isinstance(word, str) for word in self.stop):
            raise TypeError(f"stop strings are texts, not {self.stop}")
        if "" in self.stop:
            raise ValueError("a stop string is empty: every text would end before it begins")
        self.include, self.min_pieces = include, min_pieces
        self.found: str | None = None
        self._held = ""

    def add(self, piece: str) -> str:
        """Adds a piece, and returns the text that is safe to emit: nothing after a stop string was found."""
        if self.found is not None:
            return ""
        if not self.stop:
            return piece
        text = self._held + piece
        self.min_pieces -= 1
        found = self._first(text) if self.min_pieces < 0 else None
        if found is not None:
            (start, self.found), self._held = found, ""
            return text[: start + len(self.found) * self.include]
        held = max((self._overlap(text, word) for word in self.stop), default=0)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]

    def _first(self, text: str) -> tuple[int, str] | None:
        """Where the first string begins, and which one it is; only those that end in the new piece count."""
        earliest = [(text.find(word, max(0, len(self._held) - len(word) + 1)), word) for word in self.stop]
        return min((each for each in earliest if each[0] >= 0), key=lambda each: each[0], default=None)

    @staticmethod
    def _overlap(text: str, word: str) -> int:
        """Length of the longest end of `text` that is the beginning of `word`, without the whole word."""
        return next((n for n in range(len(word) - 1, 0, -1) if text.endswith(word[:n])), 0)

    def finish(self) -> str:
        """Returns the text that was held back, when the text ends for another reason."""
        rest, self._held = self._held, ""
        return rest


class AnswerText:
    """Joins tokens to text: whole characters only, and nothing of a stop string.

    Args:
        tokenizer: `detokenizer()` as on Day 1.6.
        stop: strings that end the text; they do not belong to it.
        params: with `include_stop_str_in_output`, `skip_special_tokens` and `min_tokens`; None for their defaults.

    Raises:
        TypeError: a stop string is no text.
        ValueError: a stop string is empty.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        stop: Sequence[str] | str | None = None,
        params: SamplingParams | None = None,
    ):
        params = params or SamplingParams()
        rules = {"include": params.include_stop_str_in_output, "min_pieces": params.min_tokens}
        self._stop = StopStrings([stop] if isinstance(stop, str) else stop or (), **rules)
        special = {} if params.skip_special_tokens else {"skip_special_tokens": False}
        self._detokenizer = tokenizer.detokenizer(**special)
        self.text = ""  # what may be shown; the end of it that could begin a stop string is held back

    @property
    def stopped(self) -> bool:
        """Whether a stop string is complete."""
        return self._stop.found is not None

    @property
    def stop_string(self) -> str | None:
        """The stop string that is complete; None before."""
        return self._stop.found

    def add(self, token: int) -> None:
        """Adds the text of one more token."""
        self.text += self._stop.add(self._detokenizer.add(token))

    def add_end(self, token: int) -> None:
        """Adds the text of the token that has ended the answer, after `finish`."""
        self.text += self._detokenizer.add(token) + self._detokenizer.finish()

    def finish(self) -> None:
        """Delivers what was held back: no token follows."""
        self.text += self._stop.add(self._detokenizer.finish()) + self._stop.finish()
