"""The stubs that learners start from, and backups of what learners write."""

import shutil
import time
from pathlib import Path

from ..repo import PRIVATE
from ..repo import read_source as read
from .cut import cut
from .tree import LEARNER, REFERENCE


def stub_of(reference: Path) -> str:
    """The stub that the learner starts from: the reference with every exercise blank."""
    return cut(read(reference), reference.relative_to(REFERENCE.parent))


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def keep(files: list[Path]) -> Path | None:
    """Copy the existing files into a fresh backup folder, and return it; None if there are none."""
    files = [file for file in files if file.exists()]
    if not files:
        return None
    folder = PRIVATE / "backups" / time.strftime("%Y%m%d-%H%M%S")
    while folder.exists():
        folder = folder.with_name(folder.name + "x")
    for file in files:
        target = folder / file.relative_to(LEARNER)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(file, target)
    return folder
