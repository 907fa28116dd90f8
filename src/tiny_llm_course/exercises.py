"""Finds the exercises of the course in a Python file: the lines below a `# TASK w.d.t: …` comment.

An exercise starts after the comment block and ends at `# END TASK` or with the function. Functions are found with
`ast`, so that no decorator can confuse the cut. A pattern finds comments and strings: `tokenize` takes as long as the
rest.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from itertools import pairwise
from typing import ClassVar, NamedTuple

from .address import Task

MARKER = re.compile(r"# TASK (\d+)\.(\d+)\.(\d+): \S")
END = "# END TASK"
ALMOST = re.compile(r"(#|//)\s*(end\s*)?task\b", re.IGNORECASE)  # in both languages
COMMENTS_AND_STRINGS = re.compile(
    r"#[^\n]*"
    r'|"""(?:\\.|[^\\])*?"""'
    r"|'''(?:\\.|[^\\])*?'''"
    r'|"(?:\\.|[^"\\\n])*"'
    r"|'(?:\\.|[^'\\\n])*'",
    re.DOTALL,
)

Function = ast.FunctionDef | ast.AsyncFunctionDef


def end_of(statement: ast.stmt) -> int:
    """The last line of a statement that was parsed."""
    return statement.end_lineno or statement.lineno


class Comment(NamedTuple):
    """A comment on a task: its line, from 1, what is before it on the line, and its text."""

    line: int
    indent: str
    text: str


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
    for line, indent, comment in task_comments(source, file, COMMENTS_AND_STRINGS, MARKER):
        if comment == END:
            if open_exercise is None or not open_exercise.start <= line <= open_exercise.end + 1:
                raise MarkerError(f"{file}:{line}: {END} closes no TASK")
            exercises[-1], open_exercise = replace(open_exercise, end=line - 1), None
        elif match := MARKER.match(comment):
            open_exercise = _open(Task(*map(int, match.groups())), line, indent, lines, functions, file)
            exercises.append(open_exercise)
        else:
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


def task_comments(
    source: str, file: str, parts: re.Pattern[str], marker: re.Pattern[str]
) -> Iterator[Comment]:
    """Every comment on a task that is alone on its line. Raises MarkerError for one that is not.

    Args:
        parts: matches the comments and the strings of the language, so that none inside a string counts.
        marker: matches a comment that opens an exercise.
    """
    for found in parts.finditer(source):
        text, before = found[0].rstrip(), source[source.rfind("\n", 0, found.start()) + 1 : found.start()]
        if ALMOST.match(text):
            line = len(source[: found.start() + 1].splitlines())
            if not before.strip():
                yield Comment(line, before, text)
            elif marker.match(text):
                raise MarkerError(f"{file}:{line}: a TASK comment must be alone on its line")


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
