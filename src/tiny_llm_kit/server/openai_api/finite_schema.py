"""JSON schemas with bounded values: a small model may go on with a string until it is stopped."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from ...model.files import Json

AROUND = 6  # characters around a key and its value
SHORTEST, MOST_ITEMS, ITEM = 16, 64, 24  # characters of a string, items of a list, and tokens for one of them
LARGEST, SMALLEST_STEP = 10**15, 1e-6  # of a number
DEEPEST = 40  # levels; what lies below stays as it is
# A string with one of these has an end, or a form of its own; one with a format has room for that.
BOUNDED = {"enum", "const", "pattern", "maxLength"}
OF_A_FORMAT = 64  # characters: a time has 35 at most, a UUID 36
# Without one of these any value fits, and a schema beside them says a part of the truth alone.
FORMS = {"type", "enum", "const", "$ref", "anyOf", "oneOf", "properties"}
ANY_SCALAR = {"type": ["string", "integer", "boolean", "null"]}
ANY_KEY = f"^.{{1,{SHORTEST}}}$"


def finite(schema: object, room: int) -> object:
    """The schema with limits that it does not have itself, so that its values fit into the tokens that there are.

    Every value that it allows is one of the given schema. A character is counted as a token, which it may be. How often
    a schema contains itself has no limit. With `allOf`, objects may have any properties: what one part closes, the
    others could not have.

    Args:
        schema: a JSON schema.
        room: tokens for a value.
    """
    return Limits('"allOf"' not in json.dumps(schema)).value(schema, room, 0)


@dataclass(frozen=True)
class Limits:
    """Puts limits on a schema.

    Args:
        is_whole: whether each schema alone says what its values are: then an object gets no unnamed properties, and one
            that may be anything is a short value.
    """

    is_whole: bool

    def value(self, schema: object, room: int, depth: int) -> object:
        """The schema of a value, `depth` levels below the first one."""
        schema = {} if schema is True and self.is_whole else schema
        if not isinstance(schema, Mapping) or depth > DEEPEST:
            return schema
        made = {**schema, **ANY_SCALAR} if self.is_whole and not FORMS & schema.keys() else dict(schema)
        kinds = made.get("type")
        kinds = [kinds] if isinstance(kinds, str) else kinds if isinstance(kinds, list) else []
        if "string" in kinds and not BOUNDED & made.keys():
            shortest = OF_A_FORMAT if "format" in made else SHORTEST
            made["maxLength"] = max(shortest, room - 2, least(made, "minLength"))
        if {"integer", "number"} & {*kinds} and not {"enum", "const"} & made.keys():
            made = with_digits(made, "number" in kinds)
        if "array" in kinds:
            made |= self._items(made, room, depth + 1)
        for name in {"anyOf", "oneOf", "allOf"} & made.keys():
            if isinstance(made[name], list):
                parts = Limits(self.is_whole and FORMS & schema.keys() == {name})
                made[name] = [parts.value(each, room, depth + 1) for each in made[name]]
        for name in {"$defs", "definitions"} & made.keys():
            made[name] = self._values(made[name], room // 4, depth + 1)
        return made | self._properties(made, "object" in kinds, room, depth + 1)

    def _values(self, schemas: object, room: int, depth: int) -> object:
        """Schemas by name."""
        if not isinstance(schemas, Mapping):
            return schemas
        return {name: self.value(each, room, depth) for name, each in schemas.items()}

    def _items(self, schema: Json, room: int, depth: int) -> Json:
        """The limits of a list, whose items share the room."""
        most = most_of(schema, "Items", room)
        return {"maxItems": most, "items": self.value(schema.get("items", True), room // max(1, most), depth)}

    def _properties(self, schema: Json, is_object: bool, room: int, depth: int) -> Json:
        """The limits of an object, whose properties share the room that their names leave."""
        properties = schema.get("properties")
        is_open = is_object and self.is_whole and "patternProperties" not in schema
        if not isinstance(properties, Mapping) or not properties:
            return self._keys(schema, room, depth) if is_open else {}
        if is_open:
            others = dict.fromkeys(unnamed(schema), schema.get("additionalProperties", True))
            properties = {**properties, **others}
        share = (room - sum(len(name) + AROUND for name in properties)) // len(properties)
        closed = {"additionalProperties": False} if is_open else {}
        return {"properties": self._values(properties, share, depth), **closed}

    def _keys(self, schema: Json, room: int, depth: int) -> Json:
        """The limits of an object that may have any keys: a few short ones."""
        value = schema.get("additionalProperties", True)
        if value is False:
            return {}
        most = most_of(schema, "Properties", room)
        values = self.value(value, room // max(1, most) - SHORTEST - AROUND, depth)
        return {"patternProperties": {ANY_KEY: values}, "additionalProperties": False, "maxProperties": most}


def with_digits(schema: Json, is_fraction: bool) -> Json:
    """A number with a bounded count of digits before and after the point."""
    smallest = schema.get("minimum", -LARGEST)
    largest = max(LARGEST, smallest) if isinstance(smallest, int) else LARGEST
    step = {"multipleOf": SMALLEST_STEP} if is_fraction else {}
    return {"minimum": smallest, "maximum": largest, **step, **schema}


def unnamed(schema: Json) -> list[str]:
    """The names that an object must have, and of which its `properties` say nothing."""
    required, properties = schema.get("required"), schema.get("properties")
    if not isinstance(required, list) or not isinstance(properties, Mapping):
        return []
    return [name for name in required if isinstance(name, str) and name not in properties]


def most_of(schema: Json, what: str, room: int) -> int:
    """The largest number of "Items" or "Properties": that of the schema, or as many as the room is for."""
    most = schema.get(f"max{what}")
    return (
        most if isinstance(most, int) else max(1, min(MOST_ITEMS, room // ITEM), least(schema, f"min{what}"))
    )


def least(schema: Json, name: str) -> int:
    """A lower limit of a schema; 0 without one."""
    value = schema.get(name)
    return value if isinstance(value, int) else 0
