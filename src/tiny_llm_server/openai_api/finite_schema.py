"""JSON schemas with bounded values: a small model may go on with a string until it is stopped."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

from tiny_llm_engine.models.files import Json

UNASKED = 2000  # tokens for the values of an answer whose length is left to the server
MOST_TOKENS = 12_000  # more characters of bounded strings than these have no grammar within its limits
AROUND = 6  # characters around a key and its value
MOST_ITEMS, ITEM = 64, 24  # items of a list, and tokens for one of them
SHORT, READABLE = 16, 100  # characters that each string may have, in a small room and in a large one
KEY = 40  # of a name that an object may have beside those of the schema, if there is room
NESTED = 64  # tokens below which a value that may be anything is a scalar
LARGEST, SMALLEST_STEP = 10**15, 1e-6  # of a number
DEEPEST = 40  # levels; what lies below stays as it is
# A string with one of these has an end, or a form of its own; one with a format has room for that.
BOUNDED = {"enum", "const", "pattern", "maxLength"}
OF_A_FORMAT = 64  # characters: a time has 35 at most, a UUID 36
# Without one of these any value fits, and a schema beside them says a part of the truth alone.
FORMS = {"type", "enum", "const", "$ref", "anyOf", "oneOf", "properties"}
ANY_SCALAR = ["string", "number", "boolean", "null"]
DEFINITIONS = {"$defs", "definitions"}
SCALARS = ("number", "integer", "boolean")
EDGES = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")


def finite(schema: object, room: int) -> object:
    """The schema with limits that it does not have itself, so that its values fit into the tokens that there are.

    Every value that it allows is one of the given schema. A character is counted as a token, which it may be. How often
    a schema contains itself has no limit. With `allOf`, objects may have any properties: what one part closes, the
    others could not have.

    Args:
        schema: a JSON schema.
        room: tokens for a value.
    """
    text = json.dumps(schema)
    shortest = min(READABLE, max(SHORT, room // (8 * max(1, text.count('"string"')))))
    limits = SchemaLimits('"allOf"' not in text, shortest)
    return limits.whole(schema, room) if isinstance(schema, Mapping) else schema


@dataclass(frozen=True)
class SchemaLimits:
    """Puts limits on a schema.

    Args:
        is_whole: whether each schema alone says what its values are: then an object gets no unnamed properties, and one
            that may be anything is a short value.
        shortest: characters that each string may have, whatever its room is.
        rooms: of definitions that have no limits yet, by their reference: as large as where it is least.
        limited: the references of the others.
    """

    is_whole: bool
    shortest: int
    rooms: dict[str, int] = field(default_factory=dict)
    limited: set[str] = field(default_factory=set)

    def whole(self, schema: Mapping[str, Any], room: int) -> Json:
        """The schema, and those of its definitions that it uses."""
        made = cast(Json, self.value(schema, room, 0))
        named = {
            group: dict(made[group]) for group in DEFINITIONS & made.keys() if isinstance(made[group], dict)
        }
        while self.rooms:
            ref, least_room = self.rooms.popitem()
            self.limited.add(ref)
            _, group, name = ref.split("/")
            if name in named.get(group, ()):
                named[group][name] = self.value(named[group][name], least_room, 1)
        return {**made, **named}

    def value(self, schema: object, room: int, depth: int) -> object:
        """The schema of a value, `depth` levels below the first one."""
        schema = {} if schema is True and self.is_whole else schema
        if not isinstance(schema, Mapping) or depth > DEEPEST:
            return schema
        made = dict(schema)
        if self.is_whole and not FORMS & schema.keys():
            made["type"] = [*ANY_SCALAR, *(("array", "object") if room >= NESTED else ())]
        if isinstance(ref := made.get("$ref"), str) and ref.count("/") == 2 and ref not in self.limited:
            self.rooms[ref] = min(room, self.rooms.get(ref, room))
        kinds = made.get("type")
        kinds = [kinds] if isinstance(kinds, str) else kinds if isinstance(kinds, list) else []
        if "string" in kinds and not BOUNDED & made.keys():
            least_room = max(self.shortest, OF_A_FORMAT) if "format" in made else self.shortest
            made["maxLength"] = max(least_room, room - 2, least(made, "minLength"))
        if ("integer" in kinds or "number" in kinds) and not {"enum", "const"} & made.keys():
            made = with_digits(made, "number" in kinds)
        if "array" in kinds:
            made |= self._items(made, room, depth + 1)
        for name in {"anyOf", "oneOf", "allOf"} & made.keys():
            if isinstance(made[name], list):
                parts = replace(self, is_whole=self.is_whole and FORMS & schema.keys() == {name})
                made[name] = [parts.value(each, room, depth + 1) for each in made[name]]
        if isinstance(first := made.get("prefixItems"), list):
            made["prefixItems"] = [self.value(each, room // len(first), depth + 1) for each in first]
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
        share = room // max(1, most) - AROUND
        key = max(SHORT, min(KEY, share // 2))
        values = {f"^.{{1,{key}}}$": self.value(value, share - key, depth)}
        return {"patternProperties": values, "additionalProperties": False, "maxProperties": most}


def with_digits(schema: Json, is_fraction: bool) -> Json:
    """A number with a bounded count of digits before and after the point, which its own limits leave possible."""
    edges = [abs(edge) for name in EDGES if isinstance(edge := schema.get(name), int | float) and edge]
    largest = max([LARGEST, *(2 * edge for edge in edges)])
    is_coarse = min(edges, default=1) >= 1000 * SMALLEST_STEP
    step = {"multipleOf": SMALLEST_STEP} if is_fraction and is_coarse else {}
    return {"minimum": -largest, "maximum": largest, **step, **schema}


def unnamed(schema: Json) -> list[str]:
    """The names that an object must have, and of which its `properties` say nothing."""
    required, properties = schema.get("required"), schema.get("properties")
    if not isinstance(required, list) or not isinstance(properties, Mapping):
        return []
    return [name for name in required if isinstance(name, str) and name not in properties]


def most_of(schema: Json, what: str, room: int) -> int:
    """The largest number of "Items" or "Properties": that of the schema, or as many as the room is for.

    A few items with room for a sentence are better than many without, unless they are numbers.
    """
    if isinstance(most := schema.get(f"max{what}"), int):
        return most
    items = schema.get("items")
    are_scalars = isinstance(items, Mapping) and items.get("type") in SCALARS
    fitting = min(MOST_ITEMS, room // ITEM, MOST_ITEMS if are_scalars else math.isqrt(max(0, room)) // 2)
    return max(1, fitting, least(schema, f"min{what}"))


def least(schema: Json, name: str) -> int:
    """A lower limit of a schema; 0 without one."""
    value = schema.get(name)
    return value if isinstance(value, int) else 0
