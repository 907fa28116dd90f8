"""What every reader of a model folder shares: the error it raises and how it opens JSON."""

import json
from pathlib import Path


class CheckpointError(ValueError):
    """A model that cannot be used; the message is one line that names the file, the field and the fix."""


def shown(value: object, width: int = 60) -> str:
    """A value out of a file for an error line: escaped, on one line, at most so many characters."""
    text = repr(value)
    return text if len(text) <= width else text[: width - 3] + "..."


def require(field: str, value: object, holds: bool, wanted: str) -> None:
    """Refuses a field of a file by name, in the words that every reader shares, unless the condition `holds`."""
    if not holds:
        found = "missing" if value is None else shown(value)
        raise CheckpointError(f"{field} is {found} and must be {wanted}")


def parse_json(text: bytes) -> dict:
    """A JSON object whose keys are unique, or a ValueError that says in a few words what is wrong."""
    try:
        data = json.loads(text, object_pairs_hook=_unique)
    except UnicodeDecodeError:
        raise ValueError("is not UTF-8 text") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"is not JSON ({error.msg} at character {error.pos})") from None
    except RecursionError:
        raise ValueError("is nested too deeply") from None
    if not isinstance(data, dict):
        raise ValueError("is not a JSON object")
    return data


def _unique(pairs: list[tuple[str, object]]) -> dict:
    # Readers differ on which of two equal keys counts, so what we checked might not be what is loaded.
    data = dict(pairs)
    if len(data) < len(pairs):
        raise ValueError("has the same key twice")
    return data


def read_json(file: Path) -> dict:
    """The object in a JSON file of a model folder."""
    try:
        return parse_json(file.read_bytes())
    except FileNotFoundError:
        raise CheckpointError(f"{file}: not found; check the path, or download the model again") from None
    except OSError as error:
        raise CheckpointError(f"{file}: cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise CheckpointError(f"{file}: {error}; download the file again") from None


def read_optional_json(file: Path) -> dict:
    """Like `read_json`, but `{}` where the folder has no such file."""
    return read_json(file) if file.exists() else {}
