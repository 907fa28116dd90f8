"""The hints of a task, read from its chapter: the book is their only source."""

import re
from pathlib import Path

from ..repo import BOOK
from .address import Day, Task

# <details class="hint"><summary>Hint 1.1.1</summary> … </details>
HINT = re.compile(
    r"<details[^>]*>\s*<summary>\s*Hint (\d+\.\d+\.\d+)[^<]*</summary>(.*?)</details>", re.DOTALL
)


def chapter_of(day: Day) -> Path | None:
    """The chapter of a day: book/src/weekN-0D-*.md."""
    return next(iter(sorted((BOOK / "src").glob(f"week{day.week}-{day.day:02d}-*.md"))), None)


def hints(task: Task) -> list[str]:
    """The hints of a task as Markdown, in the order of the chapter."""
    chapter = chapter_of(task.of_day)
    text = chapter.read_text(encoding="utf-8") if chapter else ""
    return [body.strip() for address, body in HINT.findall(text) if address == str(task)]
