"""Finds the exercises of the course in a Python file: the lines below a `# TASK w.d.t: …` comment.

An exercise starts after the comment block and ends at `# END TASK` or with the function. Functions and strings are
found with `ast`, so that neither a string nor a decorator can confuse the cut; `tokenize` takes as long as the rest.
"""

import ast
import re
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from itertools import pairwise
from typing import ClassVar

from .address import Task

MARKER = re.compile(r"# TASK (\d+)\.(\d+)\.(\d+): \S")
END = "# END TASK"
ALMOST = re.compile(r"#\s*(end\s*)?task\b", re.IGNORECASE)

Function = ast.FunctionDef | ast.AsyncFunctionDef


def end_of(statement: ast.stmt) -> int:
    """The last line of a statement that was parsed."""
    return statement.end_lineno or statement.lineno


class MarkerError(ValueError):
    """A marker that cannot be cut; the message names file and line."""


@dataclass(frozen=True)
class Exercise:
    """Lines `start` to `end` (counted from 1, both inclusive) of `qualname`, which `task` asks the learner to write."""

    task: Task
    qualname: str
    start: int
    end: int
    indent: str

    comment: ClassVar[str] = "#"
    closing: ClassVar[str] = END

    @property
    def blank_line(self) -> str:
        return f'{self.indent}raise NotImplementedError("{self.task.label(self.qualname)}")\n'

    def places_of_blank(self, lines: list[str]) -> range:
        """Indices of the lines of a learner's file that may be the blank line: any, since it names its function."""
        return range(len(lines))

    def has_function(self, text: str) -> bool:
        """Whether a learner's file still has the function.

        The text need not parse as Python.
        """
        name = self.qualname.rpartition(".")[2]
        return re.search(rf"^\s*(async )?def {name}\b", text, re.MULTILINE) is not None


def find_exercises(source: str, file: str) -> list[Exercise]:
    """The exercises of a reference file, top to bottom. Raises MarkerError for a marker that does not fit."""
    # A text without anything like a marker needs no parser: `course status` reads every file of the reference.
    return list(_find(source, file)) if ALMOST.search(source) else []


@cache
def _find(source: str, file: str) -> tuple[Exercise, ...]:
    lines = source.splitlines(keepends=True)
    functions = functions_of(source)
    exercises: list[Exercise] = []
    open_exercise: Exercise | None = None
    for line, indent, comment in _comments(source, lines):
        if comment.rstrip() == END:
            if open_exercise is None or not open_exercise.start <= line <= open_exercise.end + 1:
                raise MarkerError(f"{file}:{line}: {END} closes no TASK")
            exercises[-1], open_exercise = replace(open_exercise, end=line - 1), None
        elif match := MARKER.match(comment):
            open_exercise = _open(Task(*map(int, match.groups())), line, indent, lines, functions, file)
            exercises.append(open_exercise)
        elif ALMOST.match(comment):
            raise MarkerError(f"{file}:{line}: write `# TASK w.d.t: what to do` or `{END}`, not {comment!r}")
    _check(exercises, lines, file)
    return tuple(exercises)


@lru_cache(maxsize=64)  # the mutants take their files in turns
def _tree(source: str) -> ast.Module:
    return ast.parse(source)


def functions_of(source: str) -> dict[str, Function]:
    """Every function by its qualified name, methods and nested functions included."""
    found: dict[str, Function] = {}

    def walk(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                continue  # no function with a name is inside an expression
            if isinstance(child, Function):
                found[prefix + child.name] = child
                walk(child, f"{prefix}{child.name}.<locals>.")
            elif isinstance(child, ast.ClassDef):
                walk(child, f"{prefix}{child.name}.")
            else:
                walk(child, prefix)

    walk(_tree(source), "")
    return found


def span_of(source: str, qualname: str) -> tuple[int, int] | None:
    """Indices of a function's first line and of the line after it, decorators and trailing comments included.

    Raises:
        SyntaxError: the text cannot be read as Python.
    """
    function = functions_of(source).get(qualname)
    if function is None:
        return None
    first = min([function.lineno, *(decorator.lineno for decorator in function.decorator_list)])
    return first - 1, _last_line(function, " " * function.body[0].col_offset, source.splitlines())


def _comments(source: str, lines: list[str]):
    """(line, indent, text) of every comment on a task that is alone on its line and not in a string."""
    candidates = [(number, line) for number, line in enumerate(lines, 1) if ALMOST.search(line)]
    strings = _strings(_tree(source), [number for number, _ in candidates])
    for number, line in candidates:
        text = line.lstrip()
        at = len(line) - len(text) if text.startswith("#") else _trailing(line)
        if at is None or any(first <= (number, at) < last for first, last in strings):
            continue
        if not text.startswith("#"):
            raise MarkerError(f"line {number}: a TASK comment must be alone on its line")
        if ALMOST.match(text):
            yield number, line[:at], text.rstrip()


def _trailing(line: str) -> int | None:
    """The lines on which a TASK comment follows code."""
    found = MARKER.search(line)
    return found and len(line[: found.start()].encode())


def _strings(node: ast.AST, lines: list[int]) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Where the strings on some lines are: (line, column) of the first character and after the last, in bytes."""
    found = []
    for child in ast.iter_child_nodes(node):
        if not _covers(child, lines):
            continue
        if isinstance(child, ast.Constant | ast.JoinedStr):
            found.append(((child.lineno, child.col_offset), (child.end_lineno, child.end_col_offset)))
        found += _strings(child, lines)
    return found


def _covers(node: ast.AST, lines: list[int]) -> bool:
    """Whether a node may be on one of some lines; True for a node without a position."""
    start, end = getattr(node, "lineno", None), getattr(node, "end_lineno", None)
    if start is None or end is None:
        return True
    first = min([start, *(decorator.lineno for decorator in getattr(node, "decorator_list", ()))])
    return any(first <= line <= end for line in lines)


def _open(task: Task, line: int, indent: str, lines, functions: dict[str, Function], file: str) -> Exercise:
    owner = _owner(line, indent, functions)
    if owner is None:
        raise MarkerError(f"{file}:{line}: TASK {task} is not at the top level of a function's body")
    qualname, function = owner
    start = line + 1
    while lines[start - 1].startswith(f"{indent}#") and lines[start - 1].strip() != END:
        start += 1
    return Exercise(task, qualname, start, _last_line(function, indent, lines), indent)


def _owner(line: int, indent: str, functions: dict[str, Function]) -> tuple[str, Function] | None:
    """The innermost function around `line` whose body has this indentation."""
    around = (pair for pair in functions.items() if pair[1].lineno < line <= end_of(pair[1]))
    owners = (pair for pair in around if pair[1].body[0].col_offset == len(indent))
    return max(owners, key=lambda pair: pair[1].lineno, default=None)


def _last_line(function: Function, indent: str, lines: list[str]) -> int:
    """The function's last line, with the comments that trail its last statement."""
    last = end_of(function)
    for number in range(last + 1, len(lines) + 1):
        if lines[number - 1].strip() and not lines[number - 1].startswith(f"{indent}#"):
            break
        if lines[number - 1].strip():
            last = number
    return last


def _check(exercises: list[Exercise], lines: list[str], file: str) -> None:
    owners: dict[str, Task] = {}
    for exercise in exercises:
        where = f"{file}:{exercise.start}: TASK {exercise.task}"
        text = lines[exercise.start - 1 : exercise.end]
        if not any(line.strip() and not line.strip().startswith("#") for line in text):
            raise MarkerError(f"{where} has no code below it")
        if owners.setdefault(exercise.qualname, exercise.task).of_day != exercise.task.of_day:
            raise MarkerError(f"{where}: {exercise.qualname} already belongs to {owners[exercise.qualname]}")
    for exercise, following in pairwise(exercises):
        if following.start <= exercise.end + 1:
            where = f"{file}:{following.start}"
            raise MarkerError(f"{where}: close TASK {exercise.task} with {END} before the next one")
