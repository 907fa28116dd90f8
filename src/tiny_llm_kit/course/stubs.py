"""`course sync`: writes `src/tiny_llm` from the reference, and never over a learner's work."""

import shutil
import subprocess
import time
from pathlib import Path

from ..repo import PRIVATE, ROOT
from .cut import cut
from .holes import MARKER
from .tree import LEARNER, REFERENCE, learner_file, reference_files


def stub_of(reference: Path) -> str:
    """The stub that the learner starts from: the reference with every hole blank."""
    return cut(reference.read_text(), file=str(reference.relative_to(REFERENCE.parent)))


def wanted_stubs() -> dict[Path, str]:
    return {learner_file(file): stub_of(file) for file in reference_files()}


def stale_stubs() -> list[Path]:
    """Files of `src/tiny_llm` that differ from the generated text, or that the reference no longer has."""
    wanted = wanted_stubs()
    present = set(LEARNER.rglob("*.py"))
    changed = [path for path, text in wanted.items() if path not in present or path.read_text() != text]
    return sorted([*changed, *(present - wanted.keys())])


def sync(backup: bool = False) -> tuple[list[Path], Path | None]:
    """Brings the stubs up to date.

    Returns:
        The files written or removed, and the folder of the backup, if one was made.

    Raises:
        LearnersWork: a file holds work and no backup was asked for; nothing has been written.
    """
    stale = stale_stubs()
    worked_on = [path for path in stale if path.exists() and holds_work(path)]
    if worked_on and not backup:
        raise LearnersWork(worked_on)
    kept = keep(worked_on) if worked_on else None
    wanted = wanted_stubs()
    for path in stale:
        if path in wanted:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(wanted[path])
        else:
            path.unlink()
    return stale, kept


class LearnersWork(Exception):
    """`sync` would have lost these files."""

    def __init__(self, files: list[Path]):
        super().__init__(", ".join(str(file.relative_to(ROOT)) for file in files))


def holds_work(path: Path) -> bool:
    """Whether a file may hold something that a person wrote.

    Not so only when it is the committed text and every task in it is blank: then it is an older stub.
    """
    text = path.read_text()
    markers = len(MARKER.findall(text))
    blanks = text.count('raise NotImplementedError("week ')
    return markers != blanks or _committed(path) != text


def _committed(path: Path) -> str | None:
    """The file as the last commit has it; None when Git does not know it."""
    shown = subprocess.run(
        ["git", "show", f"HEAD:{path.relative_to(ROOT).as_posix()}"], cwd=ROOT, capture_output=True, text=True
    )
    return shown.stdout if shown.returncode == 0 else None


def keep(files: list[Path]) -> Path:
    """Copies files into a fresh backup folder, and says which."""
    folder = PRIVATE / "backups" / time.strftime("%Y%m%d-%H%M%S")
    while folder.exists():
        folder = folder.with_name(folder.name + "x")
    for file in files:
        target = folder / file.relative_to(LEARNER)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(file, target)
    return folder
