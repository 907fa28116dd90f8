"""Whether a port of the learner's package has answers: by its texts alone, for commands that have no time to parse."""

from collections.abc import Iterable
from pathlib import Path

from tiny_llm_engine.machine.repo import BACKENDS

from .tree import LEARNER, PARTS, REFERENCE

TASK, BLANK = "# TASK ", 'raise NotImplementedError("week '


def has_answers(port: str, learner: Path = LEARNER) -> bool:
    """Whether fewer blanks are left than there are tasks."""
    return _count(learner / PARTS[port], BLANK) < _count(REFERENCE / PARTS[port], TASK)


def _count(folder: Path, text: str) -> int:
    texts = (file.read_text(encoding="utf-8", errors="replace") for file in folder.rglob("*.py"))
    return sum(part.count(text) for part in texts)


def port_with_answers() -> str | None:
    """The only port with answers. A port that is installed later takes nobody away from the one that was begun."""
    ports = [port for port in BACKENDS if has_answers(port)]
    return ports[0] if len(ports) == 1 else None


def other_port(ports: Iterable[str]) -> str | None:
    """A line for somebody whose answers are on another port than the one that a command works on."""
    mine = list(ports)
    others = [port for port in BACKENDS if port not in mine and has_answers(port)]
    if not others or any(map(has_answers, mine)):
        return None
    return (
        f"you work on {' and '.join(mine)}, but {others[0]}_backend has answers: "
        f"`pdm run course port {others[0]}` goes on with them"
    )
