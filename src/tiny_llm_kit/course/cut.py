"""Cuts stubs from the reference, and fills them again. Text in, text out; never touches a file."""

from collections.abc import Callable

from .address import Task
from .holes import Hole, find_holes


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
        at = [i for i, line in enumerate(lines) if line.strip() == hole.blank_line.strip()]
        if at and wanted(hole.task):
            lines[at[0] : at[0] + 1] = solved[hole.start - 1 : hole.end]
    return "".join(lines)


def blank_holes(text: str, reference: str) -> list[Hole]:
    """The holes of `reference` that `text` has not filled in yet."""
    present = {line.strip() for line in text.splitlines()}
    return [hole for hole in find_holes(reference) if hole.blank_line.strip() in present]
