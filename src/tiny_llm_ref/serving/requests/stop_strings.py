"""Stop strings: a text ends before the first of them, and no part of one is emitted. Given."""

from collections.abc import Sequence


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
