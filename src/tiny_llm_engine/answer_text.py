"""The text of an answer while its tokens come in, up to the first stop string. Given."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from .sampling import SamplingParams

if TYPE_CHECKING:
    from .tokenizer import Tokenizer


class WordMatch:
    """How much of one word the text so far ends with (Knuth, Morris and Pratt, 1977).

    A character costs a constant number of comparisons on average. The table grows with the match, so a long word costs
    nothing before the text looks like it.

    Attributes:
        matched: length of the longest end of the text that is a beginning of the word, without the whole word.
    """

    def __init__(self, word: str):
        self.word, self.matched = word, 0
        self._shorter = [0, 0]  # by the length of a match: the next shorter beginning that also ends the text

    def add(self, piece: str) -> int | None:
        """Adds text, and returns after how many of its characters the word is first complete; None if it is not."""
        ends = [end for end, character in enumerate(piece, 1) if self._completes(character)]
        return ends[0] if ends else None

    def _completes(self, character: str) -> bool:
        matched = self._with(self.matched, character)
        if matched == len(self._shorter):
            self._shorter.append(self._with(self._shorter[-1], character))
        is_complete = matched == len(self.word)
        self.matched = self._shorter[matched] if is_complete else matched
        return is_complete

    def _with(self, matched: int, character: str) -> int:
        """The match after one more character."""
        while matched and self.word[matched] != character:
            matched = self._shorter[matched]
        return matched + (self.word[matched] == character)


class StopStrings:
    """Passes on a stream of text until one of `stop` appears in it.

    The end of the text so far may be the beginning of a stop string, so it is held back until that is decided.

    Args:
        stop: the strings; without any, all text is passed on at once.
        include: whether the string that ends the text is passed on too.
        min_pieces: number of pieces passed on before the search begins; a stop string may begin in them.

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
        self._words = [WordMatch(word) for word in self.stop]
        self._held: deque[str] = deque()  # characters

    def add(self, piece: str) -> str:
        """Adds a piece, and returns the text that is safe to emit: nothing after a stop string was found."""
        if self.found is not None:
            return ""
        if not self._words:
            return piece
        starts = self._starts(piece)
        self._held.extend(piece)
        self.min_pieces -= 1
        if starts and self.min_pieces < 0:
            start, self.found = min(starts, key=lambda each: each[0])
            text = self._take(start + len(self.found) * self.include)
            self._held.clear()
            return text
        return self._take(len(self._held) - max(word.matched for word in self._words))

    def _starts(self, piece: str) -> list[tuple[int, str]]:
        """Where each string begins that a piece completes, counted from the first character that is held back."""
        ends = [(word.word, word.add(piece)) for word in self._words]
        return [(len(self._held) + end - len(word), word) for word, end in ends if end is not None]

    def _take(self, count: int) -> str:
        return "".join(self._held.popleft() for _ in range(count))

    def finish(self) -> str:
        """Returns the text that was held back, when the text ends for another reason."""
        return self._take(len(self._held))


class AnswerText:
    """Joins tokens to text: whole characters only, and no part of a stop string.

    Args:
        tokenizer: `detokenizer()` as on Day 1.6.
        stop: strings that end the text; they do not belong to it.
        params: with `include_stop_str_in_output`, `skip_special_tokens` and `min_tokens`; None for their defaults.

    Raises:
        TypeError: a stop string is not a text.
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
