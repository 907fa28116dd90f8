"""Cuts stubs from the reference, and fills them again. Text in, text out; never touches a file.

The name of the file says which language a text is in.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from . import cpp_exercises, exercises
from .address import Task
from .exercises import Exercise


@dataclass(frozen=True)
class Language:
    """The functions that read one language.

    Args:
        find_exercises: the exercises of a text, top to bottom; its second argument is the file's name in errors.
        span_of: indices of a function's first line and of the line after it; None if the text has no such function.
    """

    find_exercises: Callable[[str, str], Sequence[Exercise]]
    span_of: Callable[[str, str], tuple[int, int] | None]


CPP = Language(cpp_exercises.find_exercises, cpp_exercises.span_of)
LANGUAGES = {".py": Language(exercises.find_exercises, exercises.span_of), ".cpp": CPP, ".h": CPP}


def language_of(file: str | Path) -> Language:
    """Raises KeyError for a file that the course does not cut."""
    return LANGUAGES[Path(file).suffix]


def find_exercises(source: str, file: str | Path) -> list[Exercise]:
    """The exercises of a reference file, top to bottom. Raises MarkerError for a marker that does not fit."""
    return list(language_of(file).find_exercises(source, str(file)))


def cut(reference: str, file: str | Path, blank: Callable[[Task], bool] = lambda task: True) -> str:
    """`reference` with the exercises of every task for which `blank` is true replaced by their one blank line."""
    lines = reference.splitlines(keepends=True)
    for exercise in reversed(find_exercises(reference, file)):
        if blank(exercise.task):
            lines[exercise.start - 1 : exercise.end] = [exercise.blank_line]
    return "".join(lines)


def fill(
    text: str, reference: str, file: str | Path, wanted: Callable[[Task], bool] = lambda task: True
) -> str:
    """`text` with its blank exercises of the wanted tasks filled from `reference`; everything else stays as it is."""
    solved = reference.splitlines(keepends=True)
    lines = text.splitlines(keepends=True)
    for exercise in find_exercises(reference, file):
        at = _blank_line(lines, exercise)
        if at is not None and wanted(exercise.task):
            lines[at : at + 1] = solved[exercise.start - 1 : exercise.end]
    return "".join(lines)


def is_blank(text: str, exercise: Exercise) -> bool:
    """Whether `text` has nothing in an exercise of its reference but the blank line."""
    return _blank_line(text.splitlines(keepends=True), exercise) is not None


def _blank_line(lines: list[str], exercise: Exercise) -> int | None:
    """Index of the exercise's blank line if it stands alone: below its comment, with no code after it."""
    for at in exercise.places_of_blank(lines):
        is_below_comment = lines[at - 1].lstrip().startswith(exercise.comment)
        if lines[at].strip() == exercise.blank_line.strip() and is_below_comment:
            behind = next((other for other in lines[at + 1 :] if other.strip()), "")
            if behind.strip() == exercise.closing or not behind.startswith(exercise.indent):
                return at
    return None
