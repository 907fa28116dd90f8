"""Arguments of vLLM that have no effect here: the values that may be given anyway, and why others may not. Given."""

from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from os import PathLike
from typing import Any, TypeVar

T = TypeVar("T")

ANYTHING = (...,)
# For each argument the values that change nothing here (None never does), and the reason.
Table = Mapping[str, tuple[tuple[Any, ...], str]]


def check_argument(name: str, value: Any, values: tuple[Any, ...], reason: str) -> None:
    """Check that a value of an argument changes nothing.

    Raises:
        ValueError: it would; the line gives the reason.
    """
    value = str(value) if isinstance(value, PathLike) else value
    value = list(value) if isinstance(value, (tuple, set)) else value
    if (
        value is None
        or values is ANYTHING
        or any(type(value) is type(each) and value == each for each in values)
    ):
        return
    instead = f", or give {values[0]!r}" if values else ""
    raise ValueError(f"{name} is {repr(value)[:80]}: {reason}; leave it out{instead}")


def without_known(given: Mapping[str, Any], table: Table) -> dict[str, Any]:
    """The arguments that are not in the table; those that are change nothing.

    Raises:
        ValueError: one of them would.
    """
    for name in sorted(given.keys() & table.keys()):
        check_argument(name, given[name], *table[name])
    return {name: value for name, value in given.items() if name not in table}


def table(*rows: tuple[str, Iterable[Any], str]) -> Table:
    """A table of arguments.

    Args:
        rows: names with spaces between them, the values that change nothing, and the reason.
    """
    return {name: (tuple(values), reason) for names, values, reason in rows for name in names.split()}


def takes_known(of: Table) -> Callable[[type[T]], type[T]]:
    """Lets a class be made with the arguments of a table too, whose values change nothing."""

    def decorated(kind: type[T]) -> type[T]:
        made = kind.__init__

        @wraps(made)
        def init(self: T, *arguments: Any, **given: Any) -> None:
            made(self, *arguments, **without_known(given, of))

        kind.__init__ = init
        return kind

    return decorated


ITS_TEXT = "the answer is a text and its tokens"
# Parameters of vLLM's SamplingParams, of today and of older versions.
OF_SAMPLING = table(
    ("best_of", (1,), "n answers are computed and returned"),
    ("use_beam_search early_stopping", (False,), "there is no beam search"),
    ("length_penalty", (1.0, 1), "there is no beam search"),
    ("prompt_logprob_token_ids prompt_logprob_start logprob_token_ids", ([],), "logprobs are of the likeliest tokens"),
    ("flat_logprobs", (False,), "logprobs are a dict for each token"),
    ("detokenize", (True,), ITS_TEXT),
    ("spaces_between_special_tokens", (True,), "special tokens are written as they are"),
    ("truncate_prompt_tokens", (-1,), "a prompt is served whole, or refused"),
    ("output_kind stream_interval", ANYTHING, "there is no streaming here"),
    ("skip_clone output_text_buffer_length", ANYTHING, "it is internal to vLLM"),
    ("guided_decoding", (), "it is called structured_outputs now"),
    ("allowed_token_ids", (), "logit_bias or structured_outputs say what may be drawn"),
    ("bad_words", ([],), "logit_bias says what may not be drawn"),
    ("logits_processors", ([],), "logits are not changed by callers"),
    ("extra_args", ({},), "there are no plugins"),
    ("skip_reading_prefix_cache", (False,), "enable_prefix_caching is an option of LLM"),
    ("thinking_token_budget", (-1,), "a thought is a part of the text"),
    ("repetition_detection", (), "repetition_penalty acts on repetition"),
    ("routed_experts_prompt_start", (0,), "the choice of experts is not returned"),
    ("trace_decode_token_ids", (), "tokens are drawn"),
)  # fmt: skip
# And of its StructuredOutputsParams.
OF_STRUCTURED_OUTPUTS = table(
    ("disable_any_whitespace disable_additional_properties", (False,), "schemas say it"),
    ("whitespace_pattern structural_tag backend disable_fallback", (), "give json, regex, choice or grammar"),
)
