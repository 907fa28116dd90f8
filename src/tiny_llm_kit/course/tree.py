"""The files of the course, and the tasks and days that the reference defines."""

from functools import cache
from pathlib import Path

from ..repo import SOURCES, TESTS
from .address import Day, Task
from .exercises import Exercise
from .languages import find_exercises

REFERENCE = SOURCES / "tiny_llm_ref"
LEARNER = SOURCES / "tiny_llm"
PARTS = {"mlx": "mlx_backend", "torch": "torch_backend", "serving": "serving"}


def reference_files(part: str | None = None) -> list[Path]:
    """The Python files of the reference: all, or those of one part (a port or "serving")."""
    return sorted((REFERENCE / PARTS[part] if part else REFERENCE).rglob("*.py"))


def learner_file(reference: Path) -> Path:
    return LEARNER / reference.relative_to(REFERENCE)


@cache
def exercises_of(reference: Path) -> tuple[Exercise, ...]:
    return tuple(find_exercises(reference.read_text(encoding="utf-8"), reference.relative_to(SOURCES)))


def exercises_of_part(part: str) -> list[tuple[Path, Exercise]]:
    """Every exercise of one part with the reference file that it is in, in the order of the course."""
    found = [(file, exercise) for file in reference_files(part) for exercise in exercises_of(file)]
    return sorted(found, key=lambda pair: pair[1].task)


def tasks() -> list[Task]:
    """Every task of the course, in order."""
    return sorted({exercise.task for part in PARTS for _, exercise in exercises_of_part(part)})


def tasks_of_part(part: str) -> set[Task]:
    return {exercise.task for _, exercise in exercises_of_part(part)}


def days() -> list[Day]:
    return sorted({task.of_day for task in tasks()})


def day_tests(day: Day) -> list[Path]:
    return day.files(TESTS, "test_")
