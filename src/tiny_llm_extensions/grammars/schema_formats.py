"""Formats of strings in JSON schemas: one that nobody checks is a remark, as the specification has it, and no error."""

from collections.abc import Mapping
from typing import Any

CHECKED = frozenset(  # by llguidance
    ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri")
)
VALUES = ("enum", "const", "default", "examples")  # are not schemas
DEEPEST = 200  # levels: llguidance refuses one with more


def without_remarks(schema: Any, depth: int = 0) -> Any:
    """The schema without formats that are not checked, for example pydantic's "path" and "password".

    Args:
        depth: levels above it.
    """
    if depth > DEEPEST or not isinstance(schema, Mapping | list):
        return schema
    if isinstance(schema, list):
        return [without_remarks(each, depth + 1) for each in schema]
    return {
        name: value if name in VALUES else without_remarks(value, depth + 1)
        for name, value in schema.items()
        if name != "format" or not isinstance(value, str) or value in CHECKED
    }
