"""The pages of a day, one or one per sitting, and the tasks of each sitting."""

import re
from pathlib import Path

from ..repo import BOOK
from .address import Day, Task, parse_task
from .tree import tasks

HEADING = re.compile(r"^### Task (\d+\.\d+\.\d+): ", re.MULTILINE)


def pages_of(day: Day) -> list[Path]:
    """The pages of a day, in order: weekW-0D-*.md, or per sitting weekW-0Da-*.md, weekW-0Db-*.md and so on."""
    return sorted((BOOK / "src").glob(f"week{day.week}-{day.day:02d}*.md"))


def text_of(day: Day) -> str:
    """All pages of a day as one text."""
    return "\n".join(page.read_text(encoding="utf-8") for page in pages_of(day))


def tasks_on(text: str) -> list[Task]:
    """The tasks that have a heading in a text, in its order."""
    return [parse_task(address) for address in HEADING.findall(text)]


def sittings_of(day: Day) -> list[list[Task]]:
    """The tasks of each sitting, by page; a day with at most one page is one sitting."""
    pages = pages_of(day)
    if len(pages) < 2:
        return [[task for task in tasks() if task.of_day == day]]
    return [tasks_on(page.read_text(encoding="utf-8")) for page in pages]
