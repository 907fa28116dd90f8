"""The errors that a compiler finds in a kernel, at their places in the file."""

import re
from collections.abc import Iterator
from pathlib import Path

ERROR = re.compile(r"(?P<file>[^\s:]+)(?P<rest>:\d+(?::\d+)?: (?:fatal )?error: .*)")
MOST = 3  # errors that are shown: later ones often follow from the first


def readable(text: str, folder: Path) -> str:
    """The first errors with their lines of source; the whole text if there is no such error in it.

    Args:
        text: what the compiler has printed.
        folder: where the files are that it has named.
    """
    found = list(dict.fromkeys(_errors(text.splitlines(), folder)))  # a template is compiled for each type
    if len(found) > MOST:
        found[MOST:] = [f"… and {len(found) - MOST} more"]
    return "\n".join(found) or text


def _errors(lines: list[str], folder: Path) -> Iterator[str]:
    """Each error, with the indented lines below it: the source, and a caret at the place."""
    for number, line in enumerate(lines, 1):
        if match := ERROR.match(line):
            end = next((at for at in range(number, len(lines)) if not lines[at].startswith(" ")), len(lines))
            yield "\n".join([_short(folder / match["file"]) + match["rest"], *lines[number:end]])


def _short(path: Path) -> str:
    """The path from the current folder, if it is below it."""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
