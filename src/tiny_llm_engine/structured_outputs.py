"""What the text of an answer has to follow: a JSON schema, a regular expression, texts or a grammar. Given."""

import json as json_library
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .known_arguments import OF_STRUCTURED_OUTPUTS, takes_known


@takes_known(OF_STRUCTURED_OUTPUTS)
@dataclass(frozen=True)
class StructuredOutputsParams:
    """The form of an answer, with vLLM's names; exactly one of them.

    Args:
        json: a JSON schema, as an object or as its text.
        regex: a regular expression for the whole text.
        choice: texts, one of which is the whole text.
        grammar: a context-free grammar of the whole text, as Lark or as GBNF writes it.
        json_object: any JSON object.

    Raises:
        ValueError: none of them is given, or several are, or one has the wrong type.
    """

    json: str | Mapping[str, Any] | None = None
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None

    def __post_init__(self):
        forms = self.json, self.regex, self.choice, self.grammar, self.json_object or None
        if len(forms) - forms.count(None) != 1:
            raise ValueError(
                "structured_outputs is ambiguous or empty: give one of json, regex, choice, grammar, json_object=True"
            )
        if isinstance(self.json, Mapping):  # as text, so that parameters are comparable and hashable
            object.__setattr__(self, "json", _text_of(self.json))
        for name in ("json", "regex", "grammar"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, str):
                raise ValueError(f"structured_outputs is wrong: {name} is {value!r}, not a text")
            if value == "":
                raise ValueError(
                    f"structured_outputs is wrong: {name} is empty: give a text, or leave it out"
                )
        if self.choice is not None:
            object.__setattr__(self, "choice", _texts(self.choice))


def _texts(choice: Any) -> tuple[str, ...]:
    """The texts to choose from.

    Raises:
        ValueError: the list is empty, or an entry is not a text.
    """
    texts = tuple(choice) if isinstance(choice, Sequence) and not isinstance(choice, str) else ()
    if not texts or not all(isinstance(text, str) and text for text in texts):
        raise ValueError(f"structured_outputs is wrong: choice is {choice!r}, not a list of texts")
    return texts


def _text_of(schema: Mapping[str, Any]) -> str:
    """A schema in JSON.

    Raises:
        ValueError: it contains something that JSON does not have, or is nested too deeply.
    """
    try:
        return json_library.dumps(schema)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"structured_outputs has no grammar: {error}") from None
