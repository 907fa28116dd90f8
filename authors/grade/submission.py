"""What is taken of a submission: the sources in its `src/tiny_llm`, and nothing else."""

import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tiny_llm_course.tree import LEARNER, source_files
from tiny_llm_engine.machine.repo import ROOT
from tiny_llm_engine.machine.terminal import FatalError

from .folders import temporary_folder

LARGEST = 1_000_000  # bytes of a source file; the largest of ours has 20,000
UNPACKED = 500_000_000  # bytes of all files of a zip file
# What everybody's folder has and nobody hands in.
PASSED_BY = {
    ".git",
    ".venv",
    ".tiny-llm",
    "__pycache__",
    ".pytest_cache",
    ".hypothesis",
    ".ruff_cache",
    "book",
}


@dataclass(frozen=True)
class Submission:
    """One learner's sources by their path below `src/tiny_llm`, and the names of the other files that are not ours."""

    name: str
    sources: dict[Path, bytes]
    ignored: list[str]


def read_submission(source: Path) -> Submission:
    """Read a folder or a zip file.

    Raises:
        FatalError: there is no `src/tiny_llm` in it, or it unpacks to too much.
    """
    try:
        with _unpacked(source) as folder:
            base = _base(folder)
            if base is None:
                raise FatalError(f"{source.name}: no src/tiny_llm in it")
            package = base / LEARNER.relative_to(ROOT)
            taken = [file for file in source_files(package) if _is_plain(file, base)]
            sources = {file.relative_to(package): file.read_bytes() for file in taken}
            return Submission(source.stem, sources, _others(base, set(taken)))
    except zipfile.BadZipFile as error:
        raise FatalError(f"{source.name}: {error}") from None


@contextmanager
def _unpacked(source: Path) -> Iterator[Path]:
    if source.is_dir():
        yield source
        return
    with zipfile.ZipFile(source) as archive, temporary_folder() as folder:
        if sum(member.file_size for member in archive.infolist()) > UNPACKED:
            raise FatalError(f"{source.name}: more than {UNPACKED // 10**6} MB when unpacked")
        archive.extractall(folder)  # it writes nowhere else, and makes no links
        yield Path(folder)


def _base(folder: Path) -> Path | None:
    """The folder with `src/tiny_llm` in it: this one, or one in it, as a zip file of a whole folder has it."""
    inside = sorted(path for path in folder.iterdir() if path.is_dir())
    return next((at for at in (folder, *inside) if (at / "src" / "tiny_llm").is_dir()), None)


def _is_plain(file: Path, base: Path) -> bool:
    """Whether it is a file of the submission itself, and no link to one of ours."""
    is_inside = file.resolve() == base.resolve() / file.relative_to(base)
    return is_inside and file.is_file() and file.stat().st_size <= LARGEST


def _others(base: Path, taken: set[Path]) -> list[str]:
    """The files that are not taken, unless they are as they were handed out."""
    files = (file for file in _walk(base) if file not in taken)
    return sorted(name.as_posix() for file in files if not _is_ours(file, name := file.relative_to(base)))


def _walk(folder: Path) -> Iterator[Path]:
    for path in folder.iterdir():
        if path.is_symlink() or path.is_file():
            yield path
        elif path.is_dir() and (path.name not in PASSED_BY or (path / "src").is_dir()):
            yield from _walk(path)


def _is_ours(file: Path, name: Path) -> bool:
    ours = ROOT / name
    return not file.is_symlink() and ours.is_file() and ours.read_bytes() == file.read_bytes()
