"""The packages that authors of the course need and learners do not. They have a lock file of their own."""

import re

from tiny_llm_engine.machine.repo import ROOT

from .setup_torch import version_of

INSTALL = "pdm install -L pdm.authors.lock -G authors"  # MLX stays as `pdm install` left it


def missing_tools() -> list[str]:
    """Those of them that are not installed; what only some systems need is not asked for."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    extra = text.partition("\nauthors = [\n")[2].partition("\n]")[0]
    names = re.findall(r'^ +"([\w-]+)[^";]*"', extra, re.MULTILINE)
    return [name for name in names if version_of(name) is None]


def require(*names: str) -> None:
    """End the command with one line if one of these tools is not installed; without names, if any is not.

    Raises:
        SystemExit: one is missing, with the line that installs it.
    """
    if missing := [name for name in missing_tools() if not names or name in names]:
        raise SystemExit(f"{', '.join(missing)} not installed: `{INSTALL}` brings the authors' tools")
