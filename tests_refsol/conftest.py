"""What the tests of the product share: a copy of the repository to do things to, and a way to run its commands."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tiny_llm_kit.repo import ROOT, installed_backends

# The Gaudi side belongs to the torch port.
collect_ignore = [] if "torch" in installed_backends() else ["test_hpu.py", "test_devices.py"]


class Clone:
    """A copy of the repository under Git, whose commands run on the copy and not on the original."""

    def __init__(self, root: Path):
        self.root = root
        self.learner = root / "src" / "tiny_llm"

    def git(self, *arguments: str) -> str:
        identity = ["-c", "user.name=a learner", "-c", "user.email=learner@example.org"]
        command = ["git", *identity, *arguments]
        return subprocess.run(command, cwd=self.root, check=True, capture_output=True, text=True).stdout

    def run(self, command: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess:
        """Runs `pdm run COMMAND ARGUMENTS` of the copy with this Python."""
        module = f"tiny_llm_kit.commands.{command.replace('-', '_')}"
        env = os.environ | {"PYTHONPATH": str(self.root / "src"), "COLUMNS": "120"} | environment
        return subprocess.run(
            [sys.executable, "-m", module, *arguments], cwd=self.root, env=env, capture_output=True, text=True
        )


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    """A fresh, committed copy of the sources, the tests and the book."""
    root = tmp_path / "tiny-llm"
    ignore = shutil.ignore_patterns("__pycache__", "*.safetensors", ".hypothesis")
    for name in ("src", "tests", "book/src"):
        shutil.copytree(ROOT / name, root / name, ignore=ignore)
    for name in ("pyproject.toml", ".gitignore"):
        shutil.copy(ROOT / name, root / name)
    made = Clone(root)
    made.git("init", "-q", "-b", "main")
    made.git("add", "-A")
    made.git("commit", "-q", "-m", "start")
    return made
