"""`course export FOLDER`: a copy of the course to hand out, without what only its authors run.

With `--without-reference` no solution is in it, nor a wrong one, which is the reference with one edit. In their place
are the untouched stubs, a second time: `tree.py` reads the tasks from them.
"""

import shutil
from collections.abc import Iterable
from pathlib import Path

from tiny_llm_course.tree import ANSWERS, LEARNER, STUBS, write
from tiny_llm_engine.machine.repo import ROOT

from .stub_files import wanted_stubs

# A test compares both lists with what Git knows.
HANDED_OUT = (
    *(
        ".devcontainer",
        ".gitignore",
        "ARCHITECTURE.md",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "LICENSE",
        "NOTICE",
    ),
    *("README.md", "SECURITY.md", "authors", "benchmark_results", "benchmarks", "book", "deploy", "docs"),
    *(
        "models",
        "pdm.authors.lock",
        "pdm.lock",
        "pdm.ray.lock",
        "pdm_build.py",
        "pyproject.toml",
        "src",
        "tests",
    ),
)
LEFT_OUT = (".ci", ".github", ".pre-commit-config.yaml", "tests_refsol")
OUTPUTS = ("__pycache__", "*.egg-info", ".pytest_cache", ".hypothesis", ".ruff_cache")


def export(folder: Path, names: Iterable[str] = HANDED_OUT, reference: bool = False) -> None:
    """Copy files and folders of this course, with blank stubs in `src/tiny_llm`.

    Args:
        folder: a new or an empty one.
        names: what is copied, from the root of the course.
        reference: copy the reference too.

    Raises:
        FileExistsError: there is something in the folder.
    """
    if folder.exists() and any(folder.iterdir()):
        raise FileExistsError(17, "not empty; name a new folder", str(folder))
    for name in names:
        source, target = ROOT / name, folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=lambda at, inside: _left_out(Path(at), inside, reference))
        elif source.exists():  # a copy of a copy may lack one
            shutil.copy2(source, target)
    for path, text in wanted_stubs().items():
        write(folder / path.relative_to(ROOT), text)
        if not reference:
            write(folder / STUBS.relative_to(ROOT) / path.relative_to(LEARNER), text)


def _left_out(folder: Path, names: list[str], reference: bool) -> set[str]:
    """What `copytree` passes by: a learner's work, outputs, and unless it is wanted the reference."""
    unwanted = {LEARNER, STUBS, ROOT / "book" / "book", *([] if reference else [ANSWERS])}
    outputs = shutil.ignore_patterns(*OUTPUTS)(str(folder), names)
    return outputs | {name for name in names if folder / name in unwanted}
