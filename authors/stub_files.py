"""`course sync`: writes `src/tiny_llm` from the reference, and never over a learner's work."""

import subprocess
from pathlib import Path

from tiny_llm_course.cut import cut
from tiny_llm_course.tree import (
    LEARNER,
    REFERENCE,
    keep,
    learner_file,
    reference_files,
    source_files,
    stub_of,
    write,
)
from tiny_llm_engine.machine.repo import ROOT
from tiny_llm_engine.machine.repo import read_source as read


def wanted_stubs() -> dict[Path, str]:
    return {learner_file(file): stub_of(file) for file in reference_files()}


def stale_stubs() -> list[Path]:
    """Files of `src/tiny_llm` that differ from the generated text, or that the reference does not have."""
    wanted = wanted_stubs()
    present = set(source_files(LEARNER))
    changed = [path for path, text in wanted.items() if path not in present or read(path) != text]
    return sorted([*changed, *(present - wanted.keys())])


def sync(backup: bool = False) -> tuple[list[Path], Path | None]:
    """Bring the stubs up to date.

    Returns:
        The files written or removed, and the folder of the backup, if one was made. A file that only the learner
        has is kept.

    Raises:
        LearnersWork: a file holds work and no backup was asked for; only absent files have been written.
    """
    wanted = wanted_stubs()
    stale = [path for path in stale_stubs() if path in wanted or is_committed_stub(path)]
    worked_on = [path for path in stale if path.exists() and not is_committed_stub(path)]
    if worked_on and not backup:
        absent = [path for path in stale if not path.exists()]
        for path in absent:
            write(path, wanted[path])
        raise LearnersWork(worked_on, absent)
    kept = keep(worked_on)
    for path in stale:
        if path in wanted:
            write(path, wanted[path])
        else:
            path.unlink()
    return stale, kept


class LearnersWork(Exception):
    """Raised when `sync` would overwrite a learner's work.

    Args:
        files: files that hold work, left as they were.
        restored: absent files that were written again.
    """

    def __init__(self, files: list[Path], restored: list[Path]):
        super().__init__(", ".join(str(file.relative_to(ROOT)) for file in files))
        self.restored = restored


def is_committed_stub(path: Path) -> bool:
    """Whether a file is, byte for byte, the stub of the committed reference: then it has not been worked on."""
    reference = _committed(REFERENCE / path.relative_to(LEARNER))
    return reference is not None and read(path) == cut(reference, path)


def _committed(path: Path) -> str | None:
    """The file as the last commit has it; None when Git does not know it."""
    shown = subprocess.run(
        ["git", "show", f"HEAD:{path.relative_to(ROOT).as_posix()}"],
        cwd=ROOT,
        capture_output=True,
        encoding="utf-8",
    )
    return shown.stdout if shown.returncode == 0 else None
