"""How kit code reaches a solution: by name, never by import. `resolve("tiny_llm_ref", "mlx")`."""

from importlib import import_module
from pathlib import Path
from types import ModuleType

from .blas import preload
from .repo import SOURCES, require_backend

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
    module = import_module(name)
    expected = SOURCES.joinpath(*name.split("."), "__init__.py")
    if module.__file__ is None or Path(module.__file__).resolve() != expected:
        raise SystemExit(
            f"{name} was imported from {module.__file__} and not from {expected.parent}: "
            "another copy is installed in this environment; run `pdm install` again"
        )
    return module
