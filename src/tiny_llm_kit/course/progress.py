"""Stores which tasks passed in the last test run, and for which text of the learner's files."""

import hashlib
import json
from collections.abc import Iterable, Mapping

from ..repo import PRIVATE, SOURCES
from .address import Task

RESULTS = PRIVATE / "results.json"
UNKNOWN = "unknown"


def record_results(
    outcomes: Mapping[tuple[str, Task], bool], not_run: Iterable[tuple[str, Task]] = ()
) -> None:
    """Keep, per port (or "serving") and task, whether its tests passed, and the fingerprint of that port's files.

    Args:
        outcomes: whether all tests that ran have passed.
        not_run: tasks that a run should have tested, and ended before.

    Raises:
        OSError: the results cannot be written.
    """
    if not outcomes:
        return
    known = _read()
    for (port, task), passed in outcomes.items():
        known[f"{port} {task}"] = fingerprint(port) if passed else None
    for port, task in not_run:
        if known.get(f"{port} {task}") != fingerprint(port):  # else it has passed on these very files
            known[f"{port} {task}"] = UNKNOWN
    PRIVATE.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")


def is_green(port: str, task: Task) -> bool:
    """Whether the task's tests passed on the files as they are now."""
    return _read().get(f"{port} {task}") == fingerprint(port)


def is_unknown(port: str, task: Task) -> bool:
    """Whether the last run that should have tested the task ended before."""
    return _read().get(f"{port} {task}") == UNKNOWN


def fingerprint(port: str) -> str:
    """A fingerprint of the learner's package of this port."""
    folder = SOURCES / "tiny_llm" / ("serving" if port == "serving" else f"{port}_backend")
    digest = hashlib.sha256()
    for file in sorted(folder.rglob("*.py")):
        digest.update(file.relative_to(folder).as_posix().encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


def _read() -> dict[str, str | None]:
    try:
        known = json.loads(RESULTS.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return known if isinstance(known, dict) else {}
