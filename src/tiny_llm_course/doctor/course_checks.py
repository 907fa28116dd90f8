"""The checks of `pdm run doctor` that only a checkout needs: PDM, the book, the learner's port, the authors' tools."""

import shutil
import sys
from collections.abc import Callable

from tiny_llm_engine.machine.installation import INSTALL_MLX, INSTALL_TORCH

from .. import capabilities
from ..mdbook import find_mdbook
from . import authors_tools, checks
from .checks import Check


def check_environment() -> Check:
    """Check the project's own environment, and the PDM that made it."""
    if sys.prefix == sys.base_prefix:
        fix = "run it as `pdm run doctor`, after `pdm install`"
        return Check("environment", "warn", f"{sys.prefix} is not an environment of its own", fix)
    if shutil.which("pdm") is None:
        detail = f"{sys.prefix}, but no pdm on the PATH"
        return Check("environment", "warn", detail, 'pip install "pdm[locked]"')
    return Check("environment", "ok", sys.prefix)


def check_authors_tools() -> Check:
    """Report what only authors of the course need; a learner is never asked to install it."""
    name, missing = "authors' tools", authors_tools.missing_tools()
    if not missing:
        return Check(name, "ok", "installed: `pdm run test-all` finds them")
    return Check(name, "ok", f"not installed, and no day needs them: `{authors_tools.INSTALL}`")


def check_mdbook() -> Check:
    program = find_mdbook()
    if program is None:
        return Check("mdbook", "warn", "absent: `pdm run book` cannot show the book", "pdm install")
    return Check("mdbook", "ok", program)


def check_port() -> Check:
    """Check that the library of the learner's port is installed."""
    port = capabilities.learner_port()
    absent = [name for name in capabilities.ports_of(port) if name not in capabilities.installed_backends()]
    if not absent:
        return Check("your port", "ok", f"{port} (`pdm run course port` changes it)")
    fix = INSTALL_TORCH if absent == ["torch"] else INSTALL_MLX
    return Check("your port", "missing", f"{port}, but {', '.join(absent)} is not installed", fix)


def all_checks() -> list[Callable[[], Check]]:
    """Those of `checks` with these between them."""
    common = [check for check in checks.CHECKS if check not in (checks.check_any_port, checks.check_model)]
    ends = [check_mdbook, checks.check_model, check_port, check_authors_tools]
    return [*common[:2], check_environment, *common[2:], *ends]
