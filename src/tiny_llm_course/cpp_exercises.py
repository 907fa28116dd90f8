"""Finds the exercises of the course in a C++ file: the lines from `// TASK w.d.t: …` to `// END TASK`.

An exercise is the body of an `int` function, to its end. Its blank returns the number of the task: a file with blanks
still compiles, and the caller of the kernel raises the error. We don't parse C++: one pattern finds comments and
strings, and a function begins at the start of a line and ends with `}` alone at the start of a line.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from .address import Task
from .exercises import Exercise, MarkerError, task_comments

MARKER = re.compile(r"// TASK (\d+)\.(\d+)\.(\d+): \S")
END = "// END TASK"

NO_CODE = re.compile(
    r"//[^\n]*"
    r"|/\*.*?\*/"
    r'|R"([^\s()\\]*)\(.*?\)\1"'  # a raw string
    r'|"(?:\\.|[^"\\\n])*"'
    r"|(?<!\w)'(?:\\.|[^'\\\n])*'",  # no quote of 1'000'000
    re.DOTALL,
)
FUNCTION = re.compile(
    r"^(?P<type>[A-Za-z_][^;{}]*?)\b(?P<name>\w+)\s*\([^(){};]*\)\s*(?:noexcept\s*)?\{", re.MULTILINE
)
ONE_LINE = re.compile(r".*\}[ \t]*$", re.MULTILINE)
CLOSING = re.compile(r"^\}.*$", re.MULTILINE)
LONGER = {"unsigned", "long", "short"}  # before `int` they name another type


@dataclass(frozen=True)
class CppFunction:
    """A function at the start of a line. Lines are counted from 1.

    Args:
        type: all text before its name.
        first: the line on which that begins.
        body: the line of `{`.
        last: the line of `}`.
    """

    name: str
    type: str
    first: int
    body: int
    last: int

    @property
    def returns_int(self) -> bool:
        words = self.type.split()
        return words[-1:] == ["int"] and not LONGER.intersection(words[-2:-1])


@dataclass(frozen=True)
class Marker:
    """A comment on a task that is alone on its line; `task` is None for the one that ends an exercise."""

    line: int
    indent: str
    task: Task | None


@dataclass(frozen=True)
class CppExercise(Exercise):
    """An exercise whose blank line returns the number of its task."""

    comment: ClassVar[str] = "//"
    closing: ClassVar[str] = END

    @property
    def blank_line(self) -> str:
        return f"{self.indent}return {self.task.number};\n"

    def places_of_blank(self, lines: list[str]) -> range:
        """The line below the comment of the exercise's own marker: other functions may return the same number."""
        first, end = span_of("".join(lines), self.qualname) or (0, 0)
        for at in range(first, end):
            if lines[at].strip().startswith(f"// TASK {self.task}:"):
                at = _below_comment(lines, at)
                return range(at, at + 1)
        return range(0)

    def has_function(self, text: str) -> bool:
        """Whether a learner's file still has the function, closed or not."""
        return re.search(rf"^(\w.*\W)?{self.qualname}\s*\(", text, re.MULTILINE) is not None


def find_exercises(source: str, file: str) -> list[CppExercise]:
    """The exercises of a reference file, top to bottom. Raises MarkerError for a marker that does not fit."""
    return [_exercise(opening, end, source, file) for opening, end in _pairs(_markers(source, file), file)]


def functions_of(source: str) -> list[CppFunction]:
    """The functions that begin at the start of a line, and end on that line or with `}` alone at the start of one."""
    code = code_of(source)
    headers = list(FUNCTION.finditer(code))
    found = []
    ends = [*(header.start() for header in headers), len(code)][1:]
    for header, end in zip(headers, ends, strict=True):
        closing = ONE_LINE.match(code, header.end(), end) or CLOSING.search(code, header.end(), end)
        if closing and closing[0].rstrip().endswith("}"):
            places = (_line(code, at) for at in (header.start(), header.end() - 1, closing.start()))
            found.append(CppFunction(header["name"], header["type"], *places))
    return found


def span_of(source: str, name: str) -> tuple[int, int] | None:
    """Indices of a function's first line and of the line after it; None if it is not there, or never closed."""
    return next(((f.first - 1, f.last) for f in functions_of(source) if f.name == name), None)


def code_of(source: str) -> str:
    """The text with spaces for its comments and strings: what is left is code, at the same places."""
    return NO_CODE.sub(lambda found: re.sub(r"\S", " ", found[0]), source)


def _line(source: str, at: int) -> int:
    """The number of the line that a character is on, as `splitlines` counts."""
    return len(source[: at + 1].splitlines())


def _markers(source: str, file: str) -> Iterator[Marker]:
    """Every comment on a task. Raises MarkerError for one that is not alone on its line, or cannot be read."""
    for line, indent, text in task_comments(source, file, NO_CODE, MARKER):
        yield Marker(line, indent, None if text == END else _task(text, f"{file}:{line}"))


def _task(comment: str, where: str) -> Task:
    match = MARKER.match(comment)
    if match is None:
        raise MarkerError(f"{where}: write `// TASK w.d.t: what to do` or `{END}`, not {comment!r}")
    task = Task(*map(int, match.groups()))
    if task.number == 0:
        raise MarkerError(f"{where}: a blank returns the number of its TASK, and 0 means success")
    return task


def _pairs(markers: Iterator[Marker], file: str) -> Iterator[tuple[Marker, Marker]]:
    """The markers that begin and end an exercise, two by two."""
    for opening in markers:
        if opening.task is None:
            raise MarkerError(f"{file}:{opening.line}: {END} closes no TASK")
        end = next(markers, None)
        if end is None or end.task:
            raise MarkerError(f"{file}:{opening.line}: close TASK {opening.task} with {END}")
        if end.indent != opening.indent:
            raise MarkerError(f"{file}:{end.line}: {END} needs the indentation of TASK {opening.task}")
        yield opening, end


def _exercise(opening: Marker, end: Marker, source: str, file: str) -> CppExercise:
    assert opening.task is not None
    where, lines = f"{file}:{opening.line}: TASK {opening.task}", source.splitlines()
    function = _function_around(opening, end, source, where)
    if function.last != end.line + 1:
        raise MarkerError(f"{file}:{end.line}: only the closing brace of {function.name} may follow {END}")
    start = _below_comment(lines, opening.line - 1) + 1
    if not code_of("\n".join(lines[start - 1 : end.line - 1])).strip():
        raise MarkerError(f"{where} has no code below it")
    return CppExercise(opening.task, function.name, start, end.line - 1, opening.indent)


def _function_around(opening: Marker, end: Marker, source: str, where: str) -> CppFunction:
    """The function that an exercise is in: it returns int, and no other one has its name."""
    functions = functions_of(source)
    function = next((f for f in functions if f.body < opening.line and end.line < f.last), None)
    if function is None or not opening.indent:
        raise MarkerError(f"{where} is in no function that begins and ends at the start of a line")
    if not function.returns_int:
        raise MarkerError(f"{where}: {function.name} does not return int")
    if sum(f.name == function.name for f in functions) > 1:
        raise MarkerError(f"{where}: the file has two functions {function.name}")
    return function


def _below_comment(lines: list[str], at: int) -> int:
    """Index of the first line after the comment at index `at`."""
    while lines[at].lstrip().startswith("//") and lines[at].strip() != END:
        at += 1
    return at
