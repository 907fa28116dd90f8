"""What the tests of the product share: a copy of the repository to do things to, and a way to run its commands."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tiny_llm_kit.repo import ROOT
from tiny_llm_kit.runtime.port import installed_backends

# Tests of one port alone import its library at the top; where that port is missing they cannot even be collected.
# test_hpu.py imports torch inside the processes that it starts.
ONE_PORT = re.compile(r"^(?:import|from) (mlx|torch)\b", re.MULTILINE)


def ports_of_file(path: Path) -> set[str]:
    """The ports without which a test file cannot run."""
    return {"torch"} if path.name == "test_hpu.py" else set(ONE_PORT.findall(path.read_text()))


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    missing = collection_path.suffix == ".py" and ports_of_file(collection_path) - set(installed_backends())
    return True if missing else None


def pytest_terminal_summary(terminalreporter) -> None:
    for path in sorted(Path(__file__).parent.rglob("test_*.py")):
        for port in ports_of_file(path) - set(installed_backends()):
            terminalreporter.write_line(
                f"not tested on this machine (the {port} port is missing): {path.name}"
            )


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
