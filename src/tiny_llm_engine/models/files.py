"""Shared by all readers of a model folder: the error that they raise, and reading JSON."""

import json
from pathlib import Path
from typing import Any

# Larger than any count in a model; it keeps a hostile file from making us build a table of 10^15 rows.
LARGEST_COUNT = 2**24
Json = dict[str, Any]  # an object, whose values are of any type that JSON has


class CheckpointError(ValueError):
    """The model cannot be used; the message is one line that names the file, the field and the fix."""


def shown(value: object, width: int = 60) -> str:
    """A value from a file for an error message: escaped, on one line, at most `width` characters."""
    text = repr(value)
    return text if len(text) <= width else text[: width - 3] + "..."


def require(field: str, value: object, holds: bool, wanted: str) -> None:
    """Raise CheckpointError for a field of a file, in words that all readers share, unless `holds`."""
    if not holds:
        found = "missing" if value is None else shown(value)
        raise CheckpointError(f"{field} is {found} and must be {wanted}")


def is_count(value: object, most: int = LARGEST_COUNT) -> bool:
    """Whether a value is a whole number from 1 to `most`; `True` does not count."""
    return type(value) is int and 1 <= value <= most


def require_count(field: str, value: object, most: int = LARGEST_COUNT) -> None:
    """Raise CheckpointError for a field that is not a whole number from 1 to `most`."""
    require(field, value, is_count(value, most), f"a whole number from 1 to {most}")


def read_json(file: Path) -> Json:
    """The object in a JSON file of a model folder; its keys are unique.

    Raises:
        CheckpointError: the file is missing or unreadable, or holds no such object.
    """
    try:
        data = json.loads(file.read_bytes(), object_pairs_hook=_unique)
        if not isinstance(data, dict):
            raise ValueError("is not a JSON object")
    except FileNotFoundError:
        raise CheckpointError(f"{file}: not found; check the path, or download the model again") from None
    except OSError as error:
        raise CheckpointError(f"{file}: cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{file}: {_problem(error)}; download the file again") from None
    return data


def _unique(pairs: list[tuple[str, object]]) -> Json:
    # Readers differ on which of two equal keys they use, so we might not check what is loaded.
    data = dict(pairs)
    if len(data) < len(pairs):
        raise ValueError("has the same key twice")
    return data


def _problem(error: Exception) -> str:
    """A description of what is wrong with a JSON file."""
    if isinstance(error, json.JSONDecodeError):
        return f"is not JSON ({error.msg} at character {error.pos})"
    if isinstance(error, UnicodeDecodeError):
        return "is not UTF-8 text"
    return "is nested too deeply" if isinstance(error, RecursionError) else str(error)


def read_optional_json(file: Path) -> Json:
    """Like `read_json`, but `{}` if there is no such file."""
    return read_json(file) if file.exists() else {}
