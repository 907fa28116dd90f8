"""The languages of the course's files, by suffix: how to find the exercises and the functions of a text."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from . import cpp_exercises, exercises
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
