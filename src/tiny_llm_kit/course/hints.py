"""The hints of a task, read from the pages of its day: the book is their only source."""

import re

from .address import Task
from .pages import text_of

# <details class="hint"><summary>Hint 1.1.1</summary> … </details>
HINT = re.compile(
    r"<details[^>]*>\s*<summary>\s*Hint (\d+\.\d+\.\d+)[^<]*</summary>(.*?)</details>", re.DOTALL
)


def hints(task: Task) -> list[str]:
    """The hints of a task as Markdown, in the order of the book."""
    return [body.strip() for address, body in HINT.findall(text_of(task.of_day)) if address == str(task)]
