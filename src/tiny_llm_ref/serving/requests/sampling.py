"""Sampling parameters of a request, and limits of its answer. Given."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields

# Only the engine of Week 3 supports these: `Request` raises ValueError for them.
WEEK_3 = ("seed", "n", "sample_index", "logprobs", "ignore_eos")


@dataclass(frozen=True)
class SamplingParams:
    """The sampling parameters of one request, and where its answer ends.

    Args:
        temperature: 0 takes the most probable token.
        top_p: draw only from the nucleus of this probability; None turns it off.
        top_k: draw only from the `top_k` most probable tokens; None or 0 turns it off.
        max_tokens: maximum number of new tokens; None means the limit of the context, and 16 for `LLM.generate`.
        stop: strings that end the text and are not part of it; one string, or several.
        seed: seed of the random draws; None lets the engine choose.
        n: number of answers to the same prompt.
        logprobs: number of the most probable tokens whose log-probabilities are returned, besides that of the token
            drawn; None turns it off.
        ignore_eos: whether the answer continues after an end token.
        sample_index: number of the first of the `n` answers; each number draws independently.

    Raises:
        ValueError: a value is out of range.
    """

    temperature: float = 0.0
    top_p: float | None = None
    top_k: int | None = None
    max_tokens: int | None = None
    stop: str | Sequence[str] | None = None
    seed: int | None = None
    n: int = 1
    logprobs: int | None = None
    ignore_eos: bool = False
    sample_index: int = 0

    def __post_init__(self):
        if not _is_number(self.temperature) or (
            self.temperature != 0 and not 1e-6 <= self.temperature < math.inf
        ):
            raise ValueError(
                f"temperature is {self.temperature}: give 0 (greedy) or a number of at least 1e-6"
            )
        if self.top_p is not None and not (_is_number(self.top_p) and 0 < self.top_p <= 1):
            raise ValueError(f"top_p is {self.top_p}: give a number above 0 and at most 1, or None for off")
        self._check_whole("top_k", 0, "a whole number, 0 or None for off")
        self._check_whole("max_tokens", 1, "at least 1 token, or None")
        self._check_whole("seed", 0, "a whole number from 0 to 2⁶³ - 1, or None", largest=2**63 - 1)
        self._check_whole("logprobs", 0, "a whole number, or None for off")
        self._check_whole("n", 1, "at least 1 answer", optional=False)
        self._check_whole("sample_index", 0, "a whole number", optional=False)
        if not isinstance(self.ignore_eos, bool):
            raise ValueError(f"ignore_eos is {self.ignore_eos!r}: give True or False")
        object.__setattr__(self, "stop", _strings(self.stop))  # frozen, and comparable whatever was given

    def _check_whole(
        self, name: str, smallest: int, wanted: str, *, largest: float = math.inf, optional: bool = True
    ) -> None:
        value = getattr(self, name)
        is_whole = isinstance(value, int) and not isinstance(value, bool) and smallest <= value <= largest
        if not is_whole and not (optional and value is None):
            raise ValueError(f"{name} is {value!r}: give {wanted}")

    def changed(self, names: Sequence[str]) -> list[str]:
        """The names among `names` whose fields do not have their default values."""
        defaults = {each.name: each.default for each in fields(self)}
        return [name for name in names if getattr(self, name) != defaults[name]]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _strings(stop: Iterable[str] | None) -> tuple[str, ...]:
    """Stop strings as a tuple.

    Raises:
        ValueError: one is empty, or is not a string.
    """
    try:
        words = (stop,) if isinstance(stop, str) else tuple(stop or ())
    except TypeError:
        raise ValueError(f"stop is {stop!r}: give a string or a list of strings") from None
    if not all(isinstance(word, str) and word for word in words):
        raise ValueError(f"stop is {stop!r}: every stop string needs at least one character")
    return words
