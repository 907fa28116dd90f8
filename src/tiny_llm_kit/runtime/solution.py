"""How kit code reaches a solution: by name, never by import. `resolve("tiny_llm_ref", "mlx")`."""

import traceback
from importlib import import_module
from pathlib import Path
from types import ModuleType

from ..repo import SOURCES, require_backend
from .blas import preload

SOLUTIONS = {"tiny_llm": "tiny_llm", "ref": "tiny_llm_ref", "tiny_llm_ref": "tiny_llm_ref"}


def resolve(solution: str, backend: str) -> ModuleType:
    """The package of one port of one solution, for example `tiny_llm_ref.mlx_backend`."""
    require_backend(backend)
    if backend == "mlx":
        preload()  # the solution is what imports mlx first: after that it is too late
    return _checked(f"{SOLUTIONS[solution]}.{backend}_backend")


def resolve_serving(solution: str) -> ModuleType:
    """The package of a solution's policy, `<solution>.serving`: it knows no array library."""
    return _checked(f"{SOLUTIONS[solution]}.serving")


def _checked(name: str) -> ModuleType:
    """Imports `name` and proves that it came from this repository: what is graded is what was edited."""
    module = _imported(name)
    expected = SOURCES.joinpath(*name.split("."), "__init__.py")
    if module.__file__ is None or Path(module.__file__).resolve() != expected:
        raise SystemExit(
            f"{name} was imported from {module.__file__} and not from {expected.parent}: "
            "another copy is installed in this environment; run `pdm install` again"
        )
    return module


def _imported(name: str) -> ModuleType:
    """A learner's file that cannot be imported ends the command with one line; the reference's own raises."""
    try:
        return import_module(name)
    except Exception as error:
        if name.split(".")[0] != "tiny_llm":
            raise
        file, line = _where(error)
        raise SystemExit(
            f"{file}, line {line}: {type(error).__name__}: {getattr(error, 'msg', error)}. Mend it, or put the day "
            "back with `pdm run course reset --week W --day D --whole-files`, which keeps a copy"
        ) from None


def _where(error: Exception) -> tuple[str, int]:
    """The last place in the repository's sources that an error names."""
    if isinstance(error, SyntaxError) and error.filename:
        return _short(error.filename), error.lineno or 0
    frames = [
        f for f in traceback.extract_tb(error.__traceback__) if Path(f.filename).is_relative_to(SOURCES)
    ]
    return _short(frames[-1].filename), frames[-1].lineno or 0


def _short(file: str) -> str:
    path = Path(file)
    return str(path.relative_to(SOURCES.parent)) if path.is_relative_to(SOURCES) else file
