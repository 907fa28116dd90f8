"""Finds parts of a Python solution that a stub would show, and names that it would leave undefined."""

import ast
import re

from tiny_llm_course.exercises import Exercise, Function, end_of, find_exercises, functions_of

GIVEN = re.compile(r"#\s*GIVEN: \S")


def leaks(source: str) -> list[str]:
    """One line for each leak in a reference file; empty when the cut is clean."""
    exercises = find_exercises(source, "<source>")
    return [*_private_helpers(source, exercises), *_names_bound_in_exercises(source, exercises)]


def _in_exercise(line: int, exercises: list[Exercise]) -> bool:
    return any(exercise.start <= line <= exercise.end for exercise in exercises)


def _private_helpers(source: str, exercises: list[Exercise]) -> list[str]:
    """Private names that only exercises use, which give the solution away.

    Mark them, nest them, or declare them GIVEN.
    """
    lines, tree = source.splitlines(), ast.parse(source)
    found = []
    for name, first, last in _private_definitions(tree):
        if any(first <= exercise.start <= last for exercise in exercises) or _declared(lines, first):
            continue
        used = [n for n in _uses(tree, name) if not first <= n <= last]
        if used and all(_in_exercise(line, exercises) for line in used):
            found.append(
                f"line {first}: only exercises use {name}: mark it, nest it in the exercise, or write `# GIVEN: reason`"
            )
    return found


def _private_definitions(tree: ast.Module):
    """(name, first line, last line) of private functions, methods, classes and module constants."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and _is_private(node.name):
            yield node.name, node.lineno, end_of(node)
    for node in tree.body:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name) and _is_private(target.id):
                    yield target.id, node.lineno, end_of(node)


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def _declared(lines: list[str], first: int) -> bool:
    """Whether a `# GIVEN: reason` is on the definition's line or on the one above its decorators."""
    above = first - 2
    while above >= 0 and lines[above].lstrip().startswith("@"):
        above -= 1
    return bool(GIVEN.search(lines[first - 1]) or (above >= 0 and GIVEN.search(lines[above])))


def _uses(tree: ast.Module, name: str) -> list[int]:
    return [
        node.lineno
        for node in ast.walk(tree)
        if (isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load))
        or (isinstance(node, ast.Attribute) and node.attr == name and isinstance(node.ctx, ast.Load))
    ]


def _names_bound_in_exercises(source: str, exercises: list[Exercise]) -> list[str]:
    """Names that given code uses although only an exercise binds them."""
    functions = functions_of(source)
    found = []
    for exercise in exercises:
        names = [n for n in ast.walk(functions[exercise.qualname]) if isinstance(n, ast.Name)]
        stored = [n for n in names if isinstance(n.ctx, ast.Store)]
        bound = {n.id for n in stored if exercise.start <= n.lineno <= exercise.end}
        bound -= {n.id for n in stored if not _in_exercise(n.lineno, exercises)} | _arguments(
            functions[exercise.qualname]
        )
        found += [
            f"line {n.lineno}: {n.id} is bound only in the exercise of task {exercise.task}, but given code uses it"
            for n in names
            if n.id in bound and isinstance(n.ctx, ast.Load) and not _in_exercise(n.lineno, exercises)
        ]
    return found


def _arguments(function: Function) -> set[str]:
    spec = function.args
    return {a.arg for a in [*spec.posonlyargs, *spec.args, *spec.kwonlyargs, spec.vararg, spec.kwarg] if a}
