"""Cuts stubs from the reference, and fills them again. Text in, text out; never touches a file."""

from collections.abc import Callable

from .address import Task
from .holes import END, Hole, find_holes


def cut(reference: str, blank: Callable[[Task], bool] = lambda task: True, file: str = "<source>") -> str:
    """`reference` with the holes of every task for which `blank` is true replaced by their one raising line."""
    lines = reference.splitlines(keepends=True)
    for hole in reversed(find_holes(reference, file)):
        if blank(hole.task):
            lines[hole.start - 1 : hole.end] = [hole.blank_line]
    return "".join(lines)


def fill(text: str, reference: str, wanted: Callable[[Task], bool] = lambda task: True) -> str:
    """`text` with its blank holes of the wanted tasks filled from `reference`; everything else stays as it is."""
    solved = reference.splitlines(keepends=True)
    lines = text.splitlines(keepends=True)
    for hole in find_holes(reference):
        at = _blank_line(lines, hole)
        if at is not None and wanted(hole.task):
            lines[at : at + 1] = solved[hole.start - 1 : hole.end]
    return "".join(lines)


def blank_holes(text: str, reference: str) -> list[Hole]:
    """The holes of `reference` in which `text` has nothing but the raising line."""
    return [hole for hole in find_holes(reference) if is_blank(text, hole)]


def is_blank(text: str, hole: Hole) -> bool:
    """Whether `text` has nothing in a hole of its reference but the raising line."""
    return _blank_line(text.splitlines(keepends=True), hole) is not None


def _blank_line(lines: list[str], hole: Hole) -> int | None:
    """Index of the hole's raising line if it stands alone: below its comment, with no code after it."""
    for at, line in enumerate(lines):
        if line.strip() == hole.blank_line.strip() and lines[at - 1].lstrip().startswith("#"):
            behind = next((other for other in lines[at + 1 :] if other.strip()), "")
            if behind.strip() == END or not behind.startswith(hole.indent):
                return at
    return None
