"""The files of the course, their stubs and backups, and the tasks and days that the reference defines."""

import re
import shutil
import time
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from tiny_llm_engine.machine.repo import BACKENDS, PRIVATE, SOURCES, TESTS, read_source

from .address import Day, Task
from .cut import LANGUAGES, cut, find_exercises
from .exercises import Exercise

ANSWERS = SOURCES / "tiny_llm_ref"
STUBS = SOURCES / "tiny_llm_stubs"
# A copy that `course export --without-reference` made has untouched stubs instead of the reference. They hold every
# task, so all that reads the reference works on them; there is only nothing to fill a blank with.
REFERENCE = ANSWERS if ANSWERS.is_dir() else STUBS
LEARNER = SOURCES / "tiny_llm"
PARTS = {"mlx": "mlx_backend", "torch": "torch_backend", "serving": "serving", "native": "native"}
MARKER = re.compile(r"^\s*(?:#|//) TASK (\d+)\.(\d+)\.(\d+): ", re.MULTILINE)  # of both languages


def parts_of(ports: Iterable[str]) -> list[str]:
    """Some ports, and the parts that all ports share as far as they have exercises: they are graded with any port."""
    return [*ports, *(part for part in PARTS if part not in BACKENDS and exercises_of_part(part))]


def source_files(folder: Path) -> list[Path]:
    """The files below a folder whose language the course knows; empty without the folder."""
    return sorted(file for file in folder.rglob("*.*") if file.suffix in LANGUAGES)


def reference_files(part: str | None = None) -> list[Path]:
    """The files of the reference: all, or those of one part."""
    return source_files(REFERENCE / PARTS[part] if part else REFERENCE)


def learner_file(reference: Path) -> Path:
    return LEARNER / reference.relative_to(REFERENCE)


@cache
def exercises_of(reference: Path) -> tuple[Exercise, ...]:
    return tuple(find_exercises(reference.read_text(encoding="utf-8"), reference.relative_to(SOURCES)))


def exercises_of_part(part: str) -> list[tuple[Path, Exercise]]:
    """Every exercise of one part with the reference file that it is in, in the order of the course."""
    found = [(file, exercise) for file in reference_files(part) for exercise in exercises_of(file)]
    return sorted(found, key=lambda pair: pair[1].task)


@cache
def _tasks_in(reference: Path) -> set[Task]:
    return {Task(*map(int, found)) for found in MARKER.findall(reference.read_text(encoding="utf-8"))}


def tasks() -> list[Task]:
    """Every task of the course, in order, by the markers alone: to parse both ports takes longer than most commands."""
    return sorted({task for part in PARTS for file in reference_files(part) for task in _tasks_in(file)})


def tasks_of_part(part: str) -> set[Task]:
    return {exercise.task for _, exercise in exercises_of_part(part)}


def days() -> list[Day]:
    return sorted({task.of_day for task in tasks()})


def day_tests(day: Day) -> list[Path]:
    return day.files(TESTS, "test_")


def stub_of(reference: Path) -> str:
    """The stub that the learner starts from: the reference with every exercise blank."""
    return cut(read_source(reference), reference.relative_to(REFERENCE.parent))


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def keep(files: list[Path]) -> Path | None:
    """Copy the existing files into a fresh backup folder, and return it; None if no file exists."""
    files = [file for file in files if file.exists()]
    if not files:
        return None
    folder = PRIVATE / "backups" / time.strftime("%Y%m%d-%H%M%S")
    while folder.exists():
        folder = folder.with_name(folder.name + "x")
    for file in files:
        target = folder / file.relative_to(LEARNER)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(file, target)
    return folder
