"""Imports a package from texts in memory, so that mutants and partly solved courses need no files.

Only the modules whose text has changed, and those that import them, are loaded again: to execute the whole package for
each of a thousand texts took half of the time of the mutants and of the prefix check.
"""

import ast
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.abc import MetaPathFinder
from importlib.machinery import SourceFileLoader
from importlib.util import resolve_name, spec_from_file_location
from pathlib import Path
from types import ModuleType

from tiny_llm_engine.machine.repo import SOURCES


class Overlay(MetaPathFinder):
    """A context in which `import package` sees texts that are put over its files.

    Modules outside the package keep what they have imported from it.

    Args:
        package: dotted name, as "tiny_llm_ref".
    """

    def __init__(self, package: str):
        self.package = package
        self.texts: Mapping[Path, str] = {}
        self.outside: dict[str, ModuleType] = {}
        self._found: dict[str, None] = {}  # names of modules, as they were first imported

    def __enter__(self) -> "Overlay":
        self.outside = {name: sys.modules.pop(name) for name in [*sys.modules] if self._has(name)}
        sys.meta_path.insert(0, self)
        return self

    def __exit__(self, *_) -> None:
        sys.meta_path.remove(self)
        for name in self.loaded():
            del sys.modules[name]
        sys.modules.update(self.outside)

    def put(self, texts: Mapping[Path, str]) -> None:
        """Show `texts`, by absolute path, instead of these files, and the other files as they are."""
        files = {file for file in {*texts, *self.texts} if texts.get(file) != self.texts.get(file)}
        self.texts = texts
        self._forget({name for file in files for name in self._modules_with(file)})

    def find_spec(self, fullname: str, path=None, target=None):
        """The module of a text, or of a file that no text replaces."""
        if not self._has(fullname):
            return None
        base = SOURCES.joinpath(*fullname.split("."))
        for file, packages in ((base / "__init__.py", [str(base)]), (base.with_suffix(".py"), None)):
            text = self._text(file)
            if text is not None:
                self._found[fullname] = None
                loader = _TextLoader(fullname, str(file), text, self)
                places = {"submodule_search_locations": packages}
                return spec_from_file_location(fullname, file, loader=loader, **places)
        return None

    def _text(self, file: Path) -> str | None:
        if file in self.texts:
            return self.texts[file]
        return file.read_text(encoding="utf-8") if file.exists() else None

    def _modules_with(self, file: Path) -> set[str]:
        """The modules that hold a file's text: its own, or for a file of data any module of its package."""
        if file.suffix == ".py":
            return {_module(file)}
        package = _module(file.parent / "__init__.py")
        return {name for name in self.loaded() if f"{name}.".startswith(f"{package}.")}

    def _has(self, name: str) -> bool:
        return name == self.package or name.startswith(f"{self.package}.")

    def loaded(self) -> list[str]:
        """The names of the package and of its modules that are imported.

        To look through all of Python's modules for them, thousands of times, took seconds.
        """
        return [name for name in self._found if name in sys.modules]

    def _forget(self, changed: set[str]) -> None:
        """Remove modules and all that import them, so that the next import loads them again."""
        while changed:
            for name in changed:
                sys.modules.pop(name, None)
            changed = {name for name in self.loaded() if _imports_one_of(changed, sys.modules[name])}


class _TextLoader(SourceFileLoader):
    """Loads the module at `path` from `text`; nothing of it is read from or cached on the disk."""

    def __init__(self, name: str, path: str, text: str, overlay: Overlay):
        super().__init__(name, path)
        self.text = text
        self.overlay = overlay

    def get_code(self, fullname: str):
        return _compiled(self.text, self.path)

    def get_data(self, path: str) -> bytes:
        """A file of the package for `pkgutil.get_data`: the text that is put over it, or what is on the disk."""
        text = self.overlay.texts.get(Path(path))
        return super().get_data(path) if text is None else text.encode()

    def exec_module(self, module: ModuleType) -> None:
        """Give a package that is loaded again the modules in it that are not, then execute its text."""
        if self.is_package(module.__name__):
            self._keep_submodules(module)
        super().exec_module(module)

    def _keep_submodules(self, package: ModuleType) -> None:
        for name in self.overlay.loaded():
            parent, _, last = name.rpartition(".")
            if parent == package.__name__:
                setattr(package, last, sys.modules[name])


@cache
def _compiled(text: str, path: str):
    """Compile a text once: most files are the same in all the courses that a check makes."""
    return compile(text, path, "exec", dont_inherit=True)


def _module(file: Path) -> str:
    """The dotted name of a file: "tiny_llm_ref.serving" of its `__init__.py`."""
    parts = file.relative_to(SOURCES).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imports_one_of(names: set[str], module: ModuleType) -> bool:
    """Whether the text that a module was loaded from imports one of these modules."""
    loader = module.__loader__
    assert isinstance(loader, _TextLoader), f"{module.__name__} was loaded before its overlay"
    return not names.isdisjoint(_imports(loader.text, module.__package__ or ""))


@cache
def _imports(text: str, package: str) -> set[str]:
    """Modules that a text imports at any place, among names that are no modules."""
    found: set[str] = set()
    for node in statements(ast.parse(text)):
        if isinstance(node, ast.ImportFrom):
            origin = resolve_name("." * node.level + (node.module or ""), package)
            found |= {origin, *(f"{origin}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """All statements in a node; of a whole tree most nodes are expressions, in which nothing is imported."""
    for field in ("body", "handlers", "orelse", "finalbody", "cases"):
        for child in getattr(node, field, ()):
            yield child
            yield from statements(child)
