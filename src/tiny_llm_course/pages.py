"""The pages of a day, the tasks of each of its sittings, and the hints of a task: the book is their only source."""

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tiny_llm_engine.machine.repo import BOOK

from .address import Day, Task, parse_task
from .tree import tasks

HEADING = re.compile(r"^### Task (\d+\.\d+\.\d+): ", re.MULTILINE)
FACTS = re.compile(r'^### Task (\d+\.\d+\.\d+): (.+)\n\n<p class="task-facts">(\d+) minutes', re.MULTILINE)
# <details class="hint"><summary>Hint: the loop</summary> … </details>
HINT = re.compile(
    r'<details class="hint">\s*<summary>\s*Hint:\s*([^<]+?)\s*</summary>(.*?)</details>', re.DOTALL
)


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


@cache
def titles_and_minutes(day: Day) -> dict[Task, tuple[str, int]]:
    """The title of each task of a day, without its backquotes, and the minutes that its page gives it."""
    found = ((parse_task(task), title, minutes) for task, title, minutes in FACTS.findall(text_of(day)))
    return {task: (title.replace("`", ""), int(minutes)) for task, title, minutes in found}


@dataclass(frozen=True)
class Hint:
    """One hint.

    Args:
        title: a few words that say what it is about.
        text: Markdown.
    """

    title: str
    text: str


def hints(task: Task) -> list[Hint]:
    """The hints below a task's heading, in the order of the book; none without such a heading."""
    # Before the first task; then an address and its text for each task.
    _, *parts = HEADING.split(text_of(task.of_day))
    section = dict(zip(parts[::2], parts[1::2], strict=True)).get(str(task), "")
    return [Hint(title, text.strip()) for title, text in HINT.findall(section)]
