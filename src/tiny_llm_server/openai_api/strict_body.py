"""Fields of OpenAI's and vLLM's requests that this server does not have, with the values that change nothing.

Clients spell defaults out. Such a field is accepted; any other value of it is refused as not supported, and a name that
neither API has as unknown. null stands for the default everywhere.
"""

import json
from collections.abc import Mapping
from typing import ClassVar

from pydantic import BaseModel, ConfigDict, GetJsonSchemaHandler, model_validator
from pydantic_core import CoreSchema, PydanticCustomError

from tiny_llm_engine.known_arguments import ANYTHING, rows_of
from tiny_llm_engine.models.files import Json

Values = tuple[object, ...]


def table(*kinds: str) -> dict[str, Values]:
    """Fields by name, with the values that change nothing: rows of `vllm_arguments.txt`."""
    return {name: values for kind in kinds for name, values, _ in rows_of(f"http.{kind}")}


GENERATION, COMPLETION, STREAM = table("generation"), table("completion"), table("stream")
CHAT, TOKENIZE = table("template", "chat"), table("template", "tokenize")
STRUCTURED, RESPONSES = table("structured"), table("responses")


def changes_nothing(value: object, values: Values) -> bool:
    """Whether a field with this value can be left out: null, one of the values, or any if it is `ANYTHING`."""
    if value is None or values is ANYTHING:
        return True
    return any(value == each and isinstance(value, bool) == isinstance(each, bool) for each in values)


def without_known(body: Json, known: Mapping[str, Values], supported: Json, prefix: str = "") -> Json:
    """The body without the known fields that change nothing.

    Args:
        known: a table from above.
        supported: fields of the schema; it judges their other values.
        prefix: of names in errors, for an object inside the body.

    Raises:
        PydanticCustomError: a known field has another value, and the schema has no such field.
    """
    kept = {}
    for name, value in body.items():
        if name not in known:
            kept[name] = value
        elif not changes_nothing(value, known[name]):
            if name not in supported:
                raise not_supported(prefix + name, known[name])
            kept[name] = value
    return kept


def document(properties: Json, known: Mapping[str, Values]) -> None:
    """Add the known fields to the properties of a JSON schema, each with the values that change nothing.

    Args:
        properties: of the supported fields; one that is also known gets the further values. Changed in place.
        known: a table from above.
    """
    for name, values in known.items():
        ignored = {} if values is ANYTHING else {"enum": [None, *values]}
        if name in properties:
            properties[name]["anyOf"].append(ignored)
        else:
            properties[name] = {**ignored, "description": "accepted where it changes nothing"}


def not_supported(field: str, values: Values) -> PydanticCustomError:
    """The error for a known field with a value that would change the answer."""
    instead = "".join(f", or send {json.dumps(value)}" for value in values[:1])
    context = {"field": field, "instead": instead}
    return PydanticCustomError("not_supported", "not supported: {field}: leave it out{instead}", context)


MOST_FIELDS = 100  # of a body, known or not


def too_many(things: str, count: int, most: int) -> PydanticCustomError:
    """The error for a body with more of some things than are ever looked at."""
    context = {"count": count, "things": things, "most": most}
    return PydanticCustomError("too_many", "{count} {things}: give at most {most}", context)


class StrictBody(BaseModel):
    """A JSON object: no unknown names, no text instead of a number, no NaN; of known fields, what changes nothing."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
    known: ClassVar[Mapping[str, Values]] = {}
    prefix: ClassVar[str] = ""  # of a field's name in errors

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> Json:
        """The JSON schema of the fields, with the known fields that `check_size` takes out."""
        schema = handler.resolve_ref_schema(handler(core))
        document(schema["properties"], cls.known)
        return schema

    @model_validator(mode="before")
    @classmethod
    def check_size(cls, body: object) -> object:
        """Refuse a huge body before each of its parts costs time; leave known fields out that change nothing.

        Raises:
            PydanticCustomError: it has too many fields, or a known field that is not supported.
        """
        if not isinstance(body, dict):
            return body
        if len(body) > MOST_FIELDS:
            raise too_many("fields", len(body), MOST_FIELDS)
        return without_known(body, cls.known, cls.model_fields, cls.prefix)
