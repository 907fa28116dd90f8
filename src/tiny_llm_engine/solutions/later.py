"""Names of a package that are imported when they are asked for. Given."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def imported_later(package: str, names: Mapping[str, str]) -> Callable[[str], Any]:
    """A package's `__getattr__`: what extends the engine is imported at its first use, for the engine runs without.

    Args:
        package: its `__name__`.
        names: of each module, relative ones with a dot in front, the names in it, divided by spaces.
    """
    modules = {name: module for module, listed in names.items() for name in listed.split()}

    def named(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(modules[name], package), name)

    return named
