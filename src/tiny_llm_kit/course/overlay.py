"""Lets a package be imported from texts in memory: how mutants and half-solved courses are tested without files."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path

from ..repo import SOURCES


class _TextLoader(SourceFileLoader):
    """Loads the module at `path` from `text`; nothing is read from or cached on the disk."""

    def __init__(self, name: str, path: str, text: str):
        super().__init__(name, path)
        self.text = text

    def get_code(self, fullname: str):
        return compile(self.text, self.path, "exec", dont_inherit=True)


class _Finder(MetaPathFinder):
    def __init__(self, texts: Mapping[Path, str]):
        self.texts = texts

    def find_spec(self, fullname: str, path=None, target=None):
        base = SOURCES.joinpath(*fullname.split("."))
        for file, packages in ((base / "__init__.py", [str(base)]), (base.with_suffix(".py"), None)):
            if file in self.texts:
                loader = _TextLoader(fullname, str(file), self.texts[file])
                return spec_from_file_location(
                    fullname, file, loader=loader, submodule_search_locations=packages
                )
        return None


def forget(package: str) -> None:
    """Makes the next import of `package` a fresh one."""
    for name in [name for name in sys.modules if name == package or name.startswith(f"{package}.")]:
        del sys.modules[name]


@contextmanager
def overlay(package: str, texts: Mapping[Path, str]) -> Iterator[None]:
    """Inside, `import package` sees `texts` (by absolute path) in place of the files; outside, the files again."""
    finder = _Finder(texts)
    forget(package)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        forget(package)
