"""What a learner does with a day: look (`status`), take it from the reference (`skip`), start again (`reset`)."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from .address import Task
from .cut import blank_holes, fill
from .holes import Hole, functions_of
from .progress import is_green
from .stubs import keep, stub_of
from .tree import holes_of_part, learner_file


@dataclass(frozen=True)
class State:
    """One task in one part: "blank", "filled", or "green" when its tests passed on the files as they are."""

    task: Task
    part: str
    names: tuple[str, ...]
    status: str


def states(parts: Iterable[str]) -> list[State]:
    """Every task of these parts ("mlx", "torch", "serving"), in the order of the course."""
    found = []
    for part in parts:
        holes = holes_of_part(part)
        for task in sorted({hole.task for _, hole in holes}):
            mine = [(file, hole) for file, hole in holes if hole.task == task]
            found.append(
                State(task, part, tuple(hole.qualname for _, hole in mine), _status(part, task, mine))
            )
    return sorted(found, key=lambda state: (state.task, state.part))


def _status(part: str, task: Task, holes: list[tuple[Path, Hole]]) -> str:
    if any(hole in blank_holes(_text(file), file.read_text()) for file, hole in holes):
        return "blank"
    return "green" if is_green(part, task) else "filled"


def _text(reference: Path) -> str:
    """The learner's file; a file that was deleted counts as blank."""
    path = learner_file(reference)
    return path.read_text() if path.exists() else stub_of(reference)


def skip(parts: Iterable[str], wanted: Callable[[Task], bool]) -> list[Path]:
    """Fills the blank holes of the wanted tasks from the reference; a hole with work in it is left alone."""
    written = []
    for file in _files(parts, wanted):
        filled = fill(_text(file), file.read_text(), wanted)
        if filled != _text(file):
            learner_file(file).write_text(filled)
            written.append(learner_file(file))
    return written


def reset(parts: Iterable[str], wanted: Callable[[Task], bool]) -> tuple[list[Path], Path | None]:
    """Puts the functions of the wanted tasks back to their stubs, after a backup of the files it changes.

    Raises:
        LookupError: a function is no longer where the stub has it, so there is nothing to put back.
    """
    changed = {}
    for file in _files(parts, wanted):
        before = _text(file)
        after = _blanked(before, stub_of(file), [h for h in _holes(file, parts) if wanted(h.task)], file)
        if after != before:
            changed[learner_file(file)] = after
    kept = keep(list(changed)) if changed else None
    for path, text in changed.items():
        path.write_text(text)
    return list(changed), kept


def _blanked(text: str, stub: str, holes: list[Hole], file: Path) -> str:
    """`text` with each hole's whole function replaced by the stub's."""
    for hole in holes:
        mine, fresh = _span(text, hole.qualname), _span(stub, hole.qualname)
        if mine is None:
            raise LookupError(
                f"{learner_file(file)}: no function {hole.qualname} to put back; "
                "`pdm run course sync --backup` renews the whole file"
            )
        lines = text.splitlines(keepends=True)
        lines[mine[0] : mine[1]] = stub.splitlines(keepends=True)[fresh[0] : fresh[1]]
        text = "".join(lines)
    return text


def _span(text: str, qualname: str) -> tuple[int, int] | None:
    """First and last line of a function, decorators and trailing comments of its body included."""
    function = functions_of(text).get(qualname)
    if function is None:
        return None
    lines = text.splitlines()
    end = function.end_lineno
    while end < len(lines) and lines[end].startswith(" " * function.body[0].col_offset + "#"):
        end += 1
    return min([function.lineno, *(d.lineno for d in function.decorator_list)]) - 1, end


def _holes(file: Path, parts: Iterable[str]) -> list[Hole]:
    return [hole for part in parts for path, hole in holes_of_part(part) if path == file]


def _files(parts: Iterable[str], wanted: Callable[[Task], bool]) -> list[Path]:
    """The reference files that have a hole of a wanted task."""
    pairs = [pair for part in parts for pair in holes_of_part(part)]
    return sorted({file for file, hole in pairs if wanted(hole.task)})
