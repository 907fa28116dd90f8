"""Imports a package from texts in memory, so that mutants and partly solved courses need no files."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib.abc import MetaPathFinder
from importlib.machinery import SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path

from tiny_llm_kit.repo import SOURCES


class _TextLoader(SourceFileLoader):
    """Loads the module at `path` from `text`; nothing is read from or cached on the disk."""

    def __init__(self, name: str, path: str, text: str):
        super().__init__(name, path)
        self.text = text

    def get_code(self, fullname: str):
        return _compiled(self.text, self.path)


@cache
def _compiled(text: str, path: str):
    """Compile a text once: most files are the same in all the courses that a check makes."""
    return compile(text, path, "exec", dont_inherit=True)


class _Finder(MetaPathFinder):
    """Finds the modules of `package`, also those that `texts` leave as they are."""

    def __init__(self, package: str, texts: Mapping[Path, str]):
        self.package, self.texts = package, texts

    def find_spec(self, fullname: str, path=None, target=None):
        if not _is_of(self.package, fullname):
            return None
        base = SOURCES.joinpath(*fullname.split("."))
        for file, packages in ((base / "__init__.py", [str(base)]), (base.with_suffix(".py"), None)):
            text = self._text(file)
            if text is not None:
                loader = _TextLoader(fullname, str(file), text)
                return spec_from_file_location(
                    fullname, file, loader=loader, submodule_search_locations=packages
                )
        return None

    def _text(self, file: Path) -> str | None:
        if file in self.texts:
            return self.texts[file]
        return file.read_text(encoding="utf-8") if file.exists() else None


def _is_of(package: str, name: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def forget(package: str) -> None:
    """Remove `package` from the loaded modules, so that the next import loads it again."""
    for name in [name for name in sys.modules if _is_of(package, name)]:
        del sys.modules[name]


@contextmanager
def overlay(package: str, texts: Mapping[Path, str]) -> Iterator[None]:
    """A context in which `import package` sees `texts`, by absolute path, instead of the files.

    Args:
        package: dotted name, as "tiny_llm_ref.mlx_backend". Modules outside it keep what they have imported from it.
        texts: of files of this package.
    """
    finder = _Finder(package, texts)
    forget(package)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        forget(package)
