"""Stop strings: a text ends before the first of them, and no part of one is emitted. Given."""

from collections.abc import Sequence


class StopStrings:
    """Passes on a stream of text until one of `stop` appears in it.

    The end of the text so far may be the beginning of a stop string, so it is held back until that is decided.

    Args:
        stop: the strings; without any, all text is passed on at once.
    """

    def __init__(self, stop: Sequence[str] = ()):
        self.stop = tuple(stop)
        if not all(isinstance(word, str) for word in self.stop):
            raise TypeError(f"stop strings are texts, not {self.stop}")
        if "" in self.stop:
            raise ValueError("a stop string is empty: every text would end before it begins")
        self.found = False
        self._held = ""

    def add(self, piece: str) -> str:
        """Adds a piece, and returns the text that is safe to emit: nothing after a stop string was found."""
        if self.found:
            return ""
        if not self.stop:
            return piece
        text = self._held + piece
        starts = [text.find(word) for word in self.stop if word in text]
        if starts:
            self.found, self._held = True, ""
            return text[: min(starts)]
        held = max((self._overlap(text, word) for word in self.stop), default=0)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]

    @staticmethod
    def _overlap(text: str, word: str) -> int:
        """Length of the longest end of `text` that is the beginning of `word`, without the whole word."""
        return next((n for n in range(len(word) - 1, 0, -1) if text.endswith(word[:n])), 0)

    def finish(self) -> str:
        """Returns the text that was held back, when the text ends for another reason."""
        rest, self._held = self._held, ""
        return rest
