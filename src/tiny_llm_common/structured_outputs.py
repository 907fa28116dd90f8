"""What the text of an answer has to follow: a JSON schema, or a regular expression. Given."""

import json as json_library
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class StructuredOutputsParams:
    """The form of an answer, with vLLM's names; exactly one of them.

    Args:
        json: a JSON schema, as an object or as its text.
        regex: a regular expression for the whole text.
        json_object: any JSON object.

    Raises:
        ValueError: none of them is given, or several are, or one has the wrong type.
    """

    json: str | Mapping[str, Any] | None = None
    regex: str | None = None
    json_object: bool | None = None

    def __post_init__(self):
        if [self.json is not None, self.regex is not None, self.json_object is True].count(True) != 1:
            raise ValueError(
                "structured_outputs is ambiguous or empty: give one of json, regex, json_object=True"
            )
        if isinstance(self.json, Mapping):  # as text, so that parameters are comparable and hashable
            object.__setattr__(self, "json", _text_of(self.json))
        for name, value in (("json", self.json), ("regex", self.regex)):
            if value is not None and not isinstance(value, str):
                raise ValueError(f"structured_outputs is wrong: {name} is {value!r}, not a text")


def _text_of(schema: Mapping[str, Any]) -> str:
    """A schema in JSON.

    Raises:
        ValueError: it contains something that JSON does not have, or is nested too deeply.
    """
    try:
        return json_library.dumps(schema)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"structured_outputs has no grammar: {error}") from None
