"""The text of an answer while its tokens come in. Given."""

from collections.abc import Sequence

from ...tokenizer import Tokenizer
from .sampling import SamplingParams
from .stop_strings import StopStrings


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
