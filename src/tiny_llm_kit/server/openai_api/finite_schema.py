"""JSON schemas whose values come to an end: a small model may write a string for as long as it is allowed to."""

from collections.abc import Mapping
from typing import Any

AROUND = 6  # characters around a key and its value
SHORTEST, MOST_ITEMS, ITEM = 16, 64, 24  # characters of a string, items of a list, and tokens for one of them
LARGEST = 10**15  # of an integer
DEEPEST = 40  # levels; what lies below stays as it is
BOUNDED = {
    "enum",
    "const",
    "pattern",
    "format",
    "maxLength",
}  # of a string: it has an end, or a form of its own


def finite(schema: Any, room: int, depth: int = 0) -> Any:
    """The schema with limits that it does not have itself, so that its values fit into the tokens that there are.

    Every value that it allows is one of the given schema. A character is counted as a token, which it may be.

    Args:
        schema: a JSON schema.
        room: tokens for a value.
        depth: levels above it.
    """
    if not isinstance(schema, Mapping) or depth > DEEPEST:
        return schema
    made, kinds = dict(schema), schema.get("type")
    kinds = [kinds] if isinstance(kinds, str) else kinds if isinstance(kinds, list) else []
    if "string" in kinds and not BOUNDED & made.keys():
        made["maxLength"] = max(SHORTEST, room - 2, least(made, "minLength"))
    if "integer" in kinds and not {"enum", "const"} & made.keys():
        made.setdefault("minimum", -LARGEST)
        made.setdefault(
            "maximum", max(LARGEST, made["minimum"]) if isinstance(made["minimum"], int) else LARGEST
        )
    if "array" in kinds:
        made = with_items(made, room, depth)
    for name in ("anyOf", "oneOf", "allOf"):
        if isinstance(made.get(name), list):
            made[name] = [finite(each, room, depth + 1) for each in made[name]]
    for name in ("$defs", "definitions"):
        if isinstance(made.get(name), Mapping):
            made[name] = {key: finite(value, room // 4, depth + 1) for key, value in made[name].items()}
    return with_properties(made, room, depth)


def with_items(schema: dict[str, Any], room: int, depth: int) -> dict[str, Any]:
    """A list with a limit on its items, which share the room."""
    most = schema.get("maxItems")
    if not isinstance(most, int):
        most = max(1, min(MOST_ITEMS, room // ITEM), least(schema, "minItems"))
    items = {"items": finite(schema["items"], room // max(1, most), depth + 1)} if "items" in schema else {}
    return {**schema, "maxItems": most, **items}


def with_properties(schema: dict[str, Any], room: int, depth: int) -> dict[str, Any]:
    """An object whose properties share the room that their names leave."""
    properties = schema.get("properties")
    if not isinstance(properties, Mapping) or not properties:
        return schema
    share = (room - sum(len(name) + AROUND for name in properties)) // len(properties)
    return {
        **schema,
        "properties": {name: finite(each, share, depth + 1) for name, each in properties.items()},
    }


def least(schema: Mapping[str, Any], name: str) -> int:
    """A lower limit of a schema; 0 without one."""
    value = schema.get(name)
    return value if isinstance(value, int) else 0
