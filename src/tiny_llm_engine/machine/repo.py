"""Where things lie, in a checkout and in an installed wheel, and reading of the course's source files."""

import re
from functools import cache
from pathlib import Path
from typing import NoReturn

SOURCES = Path(__file__).resolve().parents[2]  # `src` of a checkout, or the `site-packages` of a wheel
ROOT = SOURCES.parent
IN_CHECKOUT = SOURCES.name == "src" and (ROOT / "pyproject.toml").is_file()
# `pdm_build.py` puts the small model into the wheel, inside the engine's package.
MODELS = ROOT / "models" if IN_CHECKOUT else SOURCES / "tiny_llm_engine" / "shipped"
BOOK = ROOT / "book"
TESTS = ROOT / "tests"
# Git ignores this folder: the chosen port, results of the last test runs, backups of a learner's work.
PRIVATE = ROOT / ".tiny-llm"
SETTINGS = PRIVATE / "settings.json"

BACKENDS = ("mlx", "torch")


def run_line(command: str) -> str:
    """How a user starts a command of ours here: with PDM in a checkout, with the program of the wheel elsewhere."""
    return f"pdm run {command}" if IN_CHECKOUT else f"tiny-llm {command}"


@cache
def command_modules() -> dict[str, str]:
    """The module of each `pdm run` command, by the command's name. The one table of them is in pyproject.toml."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    scripts = text.partition("[tool.pdm.scripts]")[2].partition("\n[")[0]
    return dict(re.findall(r'^([\w-]+) = .*"python -m ([\w.]+)"', scripts, re.MULTILINE))


def read_source(path: Path) -> str:
    """The text of a source file, its lines ending in "\\n". A byte order mark is not part of it.

    Raises:
        SystemExit: with one line that names the file and the line, when it is not UTF-8 text.
    """
    data = path.read_bytes()
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        _refuse(path, data[: error.start], "not UTF-8")
    if "\0" in text:
        _refuse(path, data[: data.index(b"\0")], "a NUL character")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _refuse(path: Path, before: bytes, problem: str) -> NoReturn:
    line = 1 + before.count(b"\n")
    raise SystemExit(f"{path.relative_to(ROOT)}, line {line}: {problem}; save the file as UTF-8 text")
