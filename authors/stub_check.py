"""Problems of the stubs that `course sync --check` reports: stale, leaking, undefined, or not invertible."""

import subprocess
import sys

from tiny_llm_course.cut import cut, fill
from tiny_llm_course.exercises import MarkerError
from tiny_llm_course.tree import LEARNER, reference_files
from tiny_llm_engine.machine.repo import ROOT

from .cpp_leaks import cpp_leaks
from .leaks import leaks
from .stub_files import stale_stubs

LEAKS = {".py": leaks, ".cpp": cpp_leaks, ".h": cpp_leaks}


def problems_of_stubs() -> list[str]:
    """One line per problem; empty if the committed stubs are right."""
    try:
        stale = [f"{path.relative_to(ROOT)}: stale; run `pdm run course sync`" for path in stale_stubs()]
    except MarkerError as error:
        return [str(error)]
    return [*stale, *_leaks(), *_not_invertible(), *_undefined_names()]


def _leaks() -> list[str]:
    return [
        f"{file.relative_to(ROOT)}: {line}"
        for file in reference_files()
        for line in LEAKS[file.suffix](file.read_text(encoding="utf-8"))
    ]


def _not_invertible() -> list[str]:
    """Files that are not restored byte for byte when every exercise of their stub is filled."""
    texts = {file: file.read_text(encoding="utf-8") for file in reference_files()}
    return [
        f"{file.relative_to(ROOT)}: solving every task does not give this file back"
        for file, text in texts.items()
        if fill(cut(text, file), text, file) != text
    ]


def _undefined_names() -> list[str]:
    """ruff's undefined names (F821) and syntax errors in the generated package."""
    options = ["--isolated", "--select", "F821,E9", "--output-format", "concise"]
    command = [sys.executable, "-m", "ruff", "check", *options, str(LEARNER)]
    checked = subprocess.run(command, cwd=ROOT, capture_output=True, encoding="utf-8")
    return [] if checked.returncode == 0 else checked.stdout.strip().splitlines()
