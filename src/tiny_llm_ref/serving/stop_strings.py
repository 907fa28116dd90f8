"""Stop strings: a text ends before the first of them, and none of its beginning reaches the reader. Given."""

from collections.abc import Sequence


class StopStrings:
    """Passes a stream of text on until one of `stop` appears in it.

    The end of the text so far may be the beginning of a stop string, so that much is held back until it is clear.

    Args:
        stop: the strings; none means that everything passes at once.
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
        """The text that is certain now. After a stop string was found, nothing passes."""
        if self.found:
            return ""
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
        """How much of the end of `text` is the beginning of `word`."""
        return next((n for n in range(len(word) - 1, 0, -1) if text.endswith(word[:n])), 0)

    def finish(self) -> str:
        """What was held back, when the text has ended for another reason."""
        rest, self._held = self._held, ""
        return rest
