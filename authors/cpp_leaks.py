"""Finds parts of a C++ solution that a stub would show: what one file alone can use, and only its exercises do."""

import re
from collections.abc import Iterator

from tiny_llm_course.cpp_exercises import code_of, find_exercises, functions_of

GIVEN = re.compile(r"//\s*GIVEN: \S")
OF_ONE_FILE = {"static", "inline", "template", "constexpr"}
DEFINITION = re.compile(
    r"^(?:static|inline|constexpr|const)\b[^;{}()]*?\b(?P<constant>\w+)\s*(?:\[[^\]]*\]\s*)*="
    r"|^#\s*define\s+(?P<macro>\w+)"
    r"|^(?:struct|class|union|enum|enum\s+class)\s+(?P<type>\w+)[^;()]*\{"
    r"|^using\s+(?P<alias>\w+)\s*=",
    re.MULTILINE,
)


def cpp_leaks(source: str) -> list[str]:
    """One line for each leak in a reference file; empty when the cut is clean."""
    lines, code, exercises = source.splitlines(), code_of(source), find_exercises(source, "<source>")
    inside = {line for exercise in exercises for line in range(exercise.start, exercise.end + 1)}
    found = []
    for name, first, last in _definitions(source, code):
        used = _uses(code, name) - {*range(first, last + 1)}
        given = any(GIVEN.search(line) for line in lines[max(first - 2, 0) : first])
        has_exercise = not inside.isdisjoint(range(first, last + 1))
        if used and used <= inside and not given and not has_exercise:
            found.append(f"line {first}: only exercises use {name}: mark it, or write `// GIVEN: reason`")
    return found


def _definitions(source: str, code: str) -> Iterator[tuple[str, int, int]]:
    """(name, first line, last line) of functions, constants, macros and types at the start of a line."""
    for function in functions_of(source):
        if OF_ONE_FILE.intersection(re.findall(r"\w+", function.type)):
            yield function.name, function.first, function.last
    for found in DEFINITION.finditer(code):
        line = len(code[: found.start() + 1].splitlines())
        yield found[found.lastgroup or 0], line, line


def _uses(code: str, name: str) -> set[int]:
    """The lines on which a name occurs."""
    word = re.compile(rf"\b{name}\b")
    return {number for number, line in enumerate(code.splitlines(), 1) if word.search(line)}
