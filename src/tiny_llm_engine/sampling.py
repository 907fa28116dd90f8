"""Sampling parameters of a request, and limits of its answer. Given."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from .known_arguments import OF_SAMPLING, takes_known
from .structured_outputs import StructuredOutputsParams

WEEK_2 = "temperature", "top_p", "top_k", "max_tokens", "stop"  # its engine supports these alone
# Those that change logits before a token is chosen; `min_p` is a filter, like top-k and top-p.
CHANGES_LOGITS = (
    "min_tokens",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
    "structured_outputs",
)
ALL_TOKENS = 2**31 - 1  # more than any vocabulary has
LONGEST_STOP = 1024  # characters of a stop string: an answer holds back as much text as looks like one


@takes_known(OF_SAMPLING)
@dataclass(frozen=True)
class SamplingParams:
    """The sampling parameters of one request, and where its answer ends; names and ranges are those of vLLM.

    Args:
        temperature: 0 takes the most probable token.
        top_p: draw only from the nucleus of this probability; None turns it off.
        top_k: draw only from the `top_k` most probable tokens; None, 0 or -1 turns it off.
        max_tokens: maximum number of new tokens; None means the limit of the context.
        stop: strings that end the text and are not part of it; one string, or several.
        seed: seed of the random draws; None lets the engine choose.
        n: number of answers to the same prompt.
        logprobs: number of the most probable tokens whose log-probabilities are returned, besides that of the token
            drawn; -1 is all tokens, None turns it off.
        prompt_logprobs: likewise for each token of the prompt but the first, which is then computed whole, without the
            prefix cache.
        ignore_eos: whether the answer continues after an end token.
        sample_index: number of the first of the `n` answers; each number draws independently.
        stop_token_ids: ids that end the answer as an end token does, and are not part of it, also with `ignore_eos`.
        min_tokens: number of new tokens before which nothing ends the answer: end tokens are not drawn, and stop
            strings are not looked for.
        min_p: draw only from tokens that have at least this share of the most probable one's probability; 0 turns it
            off.
        presence_penalty: subtracted from the logit of each token that the answer contains; from -2 to 2.
        frequency_penalty: subtracted for each time that the answer contains the token; from -2 to 2.
        repetition_penalty: divides positive logits of tokens in prompt or answer, and multiplies negative ones (Keskar
            et al., 2019); above 1 discourages repetition, 1 turns it off.
        logit_bias: added to logits, from -100 to 100, by token id.
        include_stop_str_in_output: whether a stop string, or the text of a stop token, belongs to the text.
        skip_special_tokens: whether special tokens are left out of the text.
        structured_outputs: what the text has to follow; None for any text.
        extra_args: `{"kv_transfer_params": {…}}` for an engine that shares keys and values with others.

    Raises:
        TypeError: neither vLLM nor this engine has such a parameter.
        ValueError: a value is out of range, or a parameter of vLLM's would change something that this engine lacks.
    """

    temperature: float = 0.0
    top_p: float | None = None
    top_k: int | None = None
    max_tokens: int | None = 16
    stop: str | Sequence[str] | None = None
    seed: int | None = None
    n: int = 1
    logprobs: int | None = None
    ignore_eos: bool = False
    sample_index: int = 0
    stop_token_ids: Sequence[int] | None = ()
    min_tokens: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] | None = field(default=None, hash=False)
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    structured_outputs: StructuredOutputsParams | None = None
    prompt_logprobs: int | None = None
    extra_args: Mapping[str, Any] | None = field(default=None, hash=False)

    def __post_init__(self):
        for each in fields(self):
            object.__setattr__(self, each.name, plain_number(getattr(self, each.name)))
        if not _is_number(self.temperature) or (
            self.temperature != 0 and not 1e-6 <= self.temperature < math.inf
        ):
            quotes = ", without quotes" * isinstance(self.temperature, str)
            raise ValueError(
                f"temperature is {self.temperature!r}: give 0 (greedy) or a number of at least 1e-6{quotes}"
            )
        if self.top_p is not None and not (_is_number(self.top_p) and 0 < self.top_p <= 1):
            raise ValueError(f"top_p is {self.top_p!r}: give a number above 0 and at most 1, or None for off")
        self._check_whole("top_k", -1, "a whole number; None, 0 or -1 for off")
        self._check_whole("max_tokens", 1, "at least 1 token, or None")
        self._check_whole("seed", 0, "a whole number from 0 to 2⁶³ - 1, or None", largest=2**63 - 1)
        for name in ("logprobs", "prompt_logprobs"):
            self._check_whole(name, -1, "a whole number, -1 for all tokens, or None for off")
            if getattr(self, name) == -1:
                object.__setattr__(self, name, ALL_TOKENS)
        self._check_whole("n", 1, "at least 1 answer", optional=False)
        self._check_whole("sample_index", 0, "a whole number", optional=False)
        for name in ("ignore_eos", "include_stop_str_in_output", "skip_special_tokens"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name} is {getattr(self, name)!r}: give True or False")
        # Frozen, and comparable whatever was given.
        object.__setattr__(self, "stop", _strings(self.stop))
        object.__setattr__(self, "top_k", None if self.top_k in (-1, 0) else self.top_k)
        object.__setattr__(self, "extra_args", _extra(self.extra_args))
        self._check_logits()
        self._check_end()

    def _check_logits(self) -> None:
        for name, smallest, largest in (
            ("presence_penalty", -2, 2),
            ("frequency_penalty", -2, 2),
            ("min_p", 0, 1),
        ):
            if not (_is_number(value := getattr(self, name)) and smallest <= value <= largest):
                raise ValueError(f"{name} is {value!r}: give a number from {smallest} to {largest}")
        if not (_is_number(self.repetition_penalty) and 0 < self.repetition_penalty < math.inf):
            raise ValueError(
                f"repetition_penalty is {self.repetition_penalty!r}: give a number above 0; 1 is off"
            )
        if self.logit_bias is not None:
            object.__setattr__(self, "logit_bias", _biases(self.logit_bias))

    def _check_end(self) -> None:
        ids = self.stop_token_ids
        object.__setattr__(self, "stop_token_ids", _stop_ids(() if ids is None else ids))
        self._check_whole("min_tokens", 0, "a whole number", optional=False)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ValueError(f"min_tokens is {self.min_tokens}: give at most max_tokens, {self.max_tokens}")
        if self.structured_outputs is None:
            return
        if not isinstance(self.structured_outputs, StructuredOutputsParams):
            raise ValueError(
                f"structured_outputs is {self.structured_outputs!r}: give StructuredOutputsParams"
            )
        if self.min_tokens or self.ignore_eos:  # at the end of the form only an end token is left to draw
            name = "min_tokens" if self.min_tokens else "ignore_eos"
            raise ValueError(
                f"{name} is {getattr(self, name)}: structured_outputs decides where the answer ends"
            )

    def _check_whole(
        self, name: str, smallest: int, wanted: str, *, largest: float = math.inf, optional: bool = True
    ) -> None:
        value = getattr(self, name)
        is_whole = isinstance(value, int) and not isinstance(value, bool) and smallest <= value <= largest
        if not is_whole and not (optional and value is None):
            raise ValueError(f"{name} is {value!r}: give {wanted}")

    @property
    def changes_logits(self) -> bool:
        """Whether logits are changed before a token of this request is chosen."""
        return bool(self.changed(CHANGES_LOGITS))

    def vocabulary_error(self, vocab_size: int) -> str | None:
        """Why a model with this many token ids cannot serve it, in one line; None when it can."""
        for name in ("stop_token_ids", "logit_bias"):
            if strange := [token for token in getattr(self, name) or () if token >= vocab_size]:
                return f"{name} has token id {strange[0]}: give ids from 0 to {vocab_size - 1}"
        return None

    def changed(self, names: Sequence[str]) -> list[str]:
        """The names among `names` whose fields do not have their default values."""
        defaults = {each.name: each.default for each in fields(self)}
        return [name for name in names if getattr(self, name) != defaults[name]]


# For these `Request` raises ValueError.
WEEK_3 = tuple(each.name for each in fields(SamplingParams) if each.name not in WEEK_2)


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _biases(given: object) -> dict[int, float]:
    """Biases by token id.

    Raises:
        ValueError: an id or a bias is out of range, or is not a number.
    """
    pairs = given.items() if isinstance(given, Mapping) else [(None, None)]
    biases = {plain_number(token): plain_number(bias) for token, bias in pairs}
    if not all(_is_id(token) and _is_number(bias) and -100 <= bias <= 100 for token, bias in biases.items()):
        raise ValueError(f"logit_bias is {given!r}: give numbers from -100 to 100, by token id")
    return biases


def _extra(given: Any) -> Mapping[str, Any] | None:
    """Checks the arguments for extensions; an empty mapping becomes None.

    Raises:
        ValueError: no extension takes them.
    """
    params = given.get("kv_transfer_params") if isinstance(given, Mapping) else None
    if given and (len(given) != 1 or not isinstance(params, Mapping)):
        raise ValueError(f"extra_args is {given!r}: give {{'kv_transfer_params': {{…}}}}, or leave it out")
    return given or None


def _stop_ids(given: object) -> tuple[int, ...]:
    """Ids of stop tokens.

    Raises:
        ValueError: an entry is not a token id.
    """
    ids: list[Any] = plain_ids(given) if isinstance(given, Iterable) else [None]
    if not all(map(_is_id, ids)):
        raise ValueError(f"stop_token_ids is {given!r}: give a list of token ids")
    return tuple(ids)


def _strings(stop: Iterable[str] | None) -> tuple[str, ...]:
    """Stop strings as a tuple.

    Raises:
        ValueError: one is empty or too long, or is not a string.
    """
    try:
        words = (stop,) if isinstance(stop, str) else tuple(stop or ())
    except TypeError:
        raise ValueError(f"stop is {stop!r}: give a string or a list of strings") from None
    if not all(isinstance(word, str) and word for word in words):
        raise ValueError(f"stop is {stop!r}: every stop string needs at least one character")
    if (longest := max(map(len, words), default=0)) > LONGEST_STOP:
        raise ValueError(f"stop has a string of {longest} characters: give at most {LONGEST_STOP}")
    return words


def plain_number(value: Any) -> Any:
    """A scalar of NumPy, PyTorch or MLX as Python's number or bool; everything else as it is."""
    return value.item() if getattr(value, "shape", None) == () else value


def plain_ids(prompt: Any) -> list[Any]:
    """A prompt as a list. Invalid token ids stay in it, for `prompt_error`.

    Args:
        prompt: token ids, in a list or an array.
    """
    ids = list(prompt.tolist() if hasattr(prompt, "tolist") else prompt)
    # A long prompt of Python's numbers costs no Python code per token.
    return ids if set(map(type, ids)) == {int} else [plain_number(token) for token in ids]
