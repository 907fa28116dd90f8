"""The pages of a day, and the tasks of each of its sittings."""

import re
from pathlib import Path

from ..repo import BOOK
from .address import Day, Task, parse_task
from .tree import tasks

HEADING = re.compile(r"^### Task (\d+\.\d+\.\d+): ", re.MULTILINE)


def pages_of(day: Day) -> list[Path]:
    """The pages with tasks of a day, in order: one, one per sitting, or one that also serves another day."""
    pages = sorted((BOOK / "src").glob(f"week{day.week}-*.md"))
    return [page for page in pages if tasks_on(page, day)]


def text_of(day: Day) -> str:
    """All pages of a day as one text."""
    return "\n".join(page.read_text(encoding="utf-8") for page in pages_of(day))


def tasks_on(page: Path, day: Day) -> list[Task]:
    """The tasks of a day that have a heading on a page, in its order."""
    headings = HEADING.findall(page.read_text(encoding="utf-8"))
    return [task for task in map(parse_task, headings) if task.of_day == day]


def sittings_of(day: Day) -> list[list[Task]]:
    """The tasks of each sitting, by page; a day with at most one page is one sitting."""
    pages = pages_of(day)
    if len(pages) < 2:
        return [[task for task in tasks() if task.of_day == day]]
    return [tasks_on(page, day) for page in pages]
