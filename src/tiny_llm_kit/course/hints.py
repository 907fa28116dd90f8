"""The hints of a task, read from the pages of its day: the book is their only source."""

import re
from dataclasses import dataclass

from .address import Task
from .pages import HEADING, text_of

# <details class="hint"><summary>Hint: the loop</summary> … </details>
HINT = re.compile(
    r'<details class="hint">\s*<summary>\s*Hint:\s*([^<]+?)\s*</summary>(.*?)</details>', re.DOTALL
)


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
    """The hints below a task's heading, in the order of the book."""
    return [Hint(title, text.strip()) for title, text in HINT.findall(_section_of(task))]


def _section_of(task: Task) -> str:
    """The text of a day's pages from a task's heading to the next one; empty if there is no such heading."""
    parts = HEADING.split(
        text_of(task.of_day)
    )  # before the first task; an address and its text, for each task
    return dict(zip(parts[1::2], parts[2::2], strict=True)).get(str(task), "")
