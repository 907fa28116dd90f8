"""Stores which tasks passed in the last test run, and for which text of the learner's files."""

import hashlib
import json
from collections.abc import Iterable, Mapping

from tiny_llm_engine.machine.repo import PRIVATE

from .address import Task
from .tree import LEARNER, PARTS, source_files

RESULTS = PRIVATE / "results.json"
UNKNOWN = "unknown"


def record_results(
    outcomes: Mapping[tuple[str, Task], bool], not_run: Iterable[tuple[str, Task]] = ()
) -> None:
    """Keep, per part and task, whether its tests passed, and the fingerprint of that part's files.

    Args:
        outcomes: whether all tests that ran have passed.
        not_run: tasks that a run should have tested, and ended before.

    Raises:
        OSError: the results cannot be written.
    """
    if not outcomes:
        return
    known = _read()
    for (part, task), passed in outcomes.items():
        known[f"{part} {task}"] = fingerprint(part) if passed else None
    for part, task in not_run:
        if known.get(f"{part} {task}") != fingerprint(part):  # else it has passed on these very files
            known[f"{part} {task}"] = UNKNOWN
    PRIVATE.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")


def last_result(part: str, task: Task) -> str:
    """The state of a task without a blank: "green" if its tests passed on the files as they are now.

    "unknown" if the last run that should have tested it ended before, else "filled".
    """
    result = _read().get(f"{part} {task}")
    return UNKNOWN if result == UNKNOWN else "green" if result == fingerprint(part) else "filled"


def fingerprint(part: str) -> str:
    """A fingerprint of the learner's package of this part."""
    folder = LEARNER / PARTS[part]
    digest = hashlib.sha256()
    for file in source_files(folder):
        digest.update(file.relative_to(folder).as_posix().encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


def _read() -> dict[str, str | None]:
    try:
        known = json.loads(RESULTS.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return known if isinstance(known, dict) else {}
