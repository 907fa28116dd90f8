"""A learner's operations on a day: `status`, `skip` (fill from the reference), `reset` (make it blank)."""

from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass
from pathlib import Path

from tiny_llm_engine.machine.repo import ROOT
from tiny_llm_engine.machine.repo import read_source as read

from .address import Task
from .cut import fill, is_blank, language_of
from .exercises import Exercise
from .progress import last_result
from .tree import exercises_of_part, keep, learner_file, stub_of, write

RENEW = "add --whole-files to renew the whole file, of which a copy is kept"


@dataclass(frozen=True)
class State:
    """One task in one part: "blank", "filled", or "green" when its tests passed on the files as they are.

    A filled task is "unknown" when the last run of its day ended before its tests.
    """

    task: Task
    part: str
    names: tuple[str, ...]
    status: str


def states(parts: Iterable[str]) -> list[State]:
    """Every task of these parts, in the order of the course."""
    found = []
    for part in parts:
        exercises = exercises_of_part(part)
        for task in sorted({exercise.task for _, exercise in exercises}):
            asked = [(file, exercise) for file, exercise in exercises if exercise.task == task]
            names = tuple(exercise.qualname for _, exercise in asked)
            found.append(State(task, part, names, _status(part, task, asked)))
    return sorted(found, key=lambda state: (state.task, state.part))


def _status(part: str, task: Task, exercises: list[tuple[Path, Exercise]]) -> str:
    texts = [(_text(file), exercise) for file, exercise in exercises]
    if any(is_blank(text, exercise) or not exercise.has_function(text) for text, exercise in texts):
        return "blank"
    return last_result(part, task)


def _text(reference: Path) -> str:
    """The learner's file; a file that was deleted or emptied counts as its stub."""
    path = learner_file(reference)
    text = read(path) if path.exists() else ""
    return text if text.strip() else stub_of(reference)


def blank_labels(parts: Iterable[str], wanted: Container[Task]) -> list[str]:
    """The address of every blank exercise of these tasks."""
    pairs = _exercises(parts, wanted.__contains__)
    return [one.task.label(one.qualname) for file, one in pairs if is_blank(_text(file), one)]


def missing_functions(parts: Iterable[str], wanted: Callable[[Task], bool]) -> list[tuple[Path, str]]:
    """The learner's file and the name of every function of these tasks that is no longer in it."""
    pairs = _exercises(parts, wanted)
    missing = [(learner_file(f), e.qualname) for f, e in pairs if not e.has_function(_text(f))]
    return list(dict.fromkeys(missing))


def skip(parts: Iterable[str], wanted: Callable[[Task], bool]) -> list[Path]:
    """Fill the blank exercises of the wanted tasks from the reference; an exercise with work in it is left alone."""
    written = []
    for file in sorted({file for file, _ in _exercises(parts, wanted)}):
        filled = fill(_text(file), read(file), file, wanted)
        if filled != _text(file):
            write(learner_file(file), filled)
            written.append(learner_file(file))
    return written


def reset(
    parts: Iterable[str], wanted: Callable[[Task], bool], whole_files: bool = False
) -> tuple[list[Path], Path | None]:
    """Put the functions of the wanted tasks back to their stubs, after a backup of the files it changes.

    Args:
        whole_files: renew the whole files that hold these tasks, whatever their content.

    Raises:
        LookupError: a Python file cannot be parsed, or a function is no longer where the stub has it.
    """
    changed, pairs = {}, _exercises(parts, wanted)
    for file in sorted({file for file, _ in pairs}):
        fresh, path = stub_of(file), learner_file(file)
        if not whole_files:
            fresh = _blanked(_text(file), fresh, [one for of, one in pairs if of == file], path)
        if not path.exists() or fresh.encode() != path.read_bytes().replace(b"\r\n", b"\n"):
            changed[path] = fresh
    kept = keep(list(changed))
    for path, text in changed.items():
        write(path, text)
    return list(changed), kept


def _blanked(text: str, stub: str, exercises: list[Exercise], path: Path) -> str:
    """`text` with each exercise's whole function replaced by the stub's."""
    for exercise in exercises:
        mine, fresh = _span(text, exercise.qualname, path), _span(stub, exercise.qualname, path)
        lines = text.splitlines(keepends=True)
        lines[mine[0] : mine[1]] = stub.splitlines(keepends=True)[fresh[0] : fresh[1]]
        text = "".join(lines)
    return text


def _span(text: str, qualname: str, path: Path) -> tuple[int, int]:
    """Indices of a function's first line and of the line after it."""
    where = path.relative_to(ROOT)
    try:
        span = language_of(path).span_of(text, qualname)
    except SyntaxError as error:
        raise LookupError(f"{where}, line {error.lineno}: {error.msg}; {RENEW}") from None
    if span is None:
        raise LookupError(f"{where}: no function {qualname} to put back; {RENEW}")
    return span


def _exercises(parts: Iterable[str], wanted: Callable[[Task], bool]) -> list[tuple[Path, Exercise]]:
    """The exercises of the wanted tasks, each with its reference file."""
    return [pair for part in parts for pair in exercises_of_part(part) if wanted(pair[1].task)]
