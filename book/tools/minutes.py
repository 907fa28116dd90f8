"""The minutes at the top of a page: the sum of its tasks, of reading, and of Prove, See and Break."""

import re
from pathlib import Path

from .length import words

WORDS_PER_MINUTE = 150
STEP = 5  # minutes: of Prove, of See, and of each item of Break; all times are multiples of it
TASK = re.compile(r'<p class="task-facts">(\d+) minutes')
TOTAL = re.compile(r'<p class="day-facts">(\d+) minutes[ ,]')
BREAK = re.compile(r"^## Break\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
ITEM = re.compile(r"^\d+\. ", re.MULTILINE)


def parts_of(markdown: str) -> tuple[int, int, int]:
    """Minutes of a page's tasks, of reading all of it, and of Prove, See and Break."""
    tasks = sum(int(minutes) for minutes in TASK.findall(markdown))
    reading = STEP * round(words(markdown) / WORDS_PER_MINUTE / STEP)
    items = sum(len(ITEM.findall(section)) for section in BREAK.findall(markdown))
    return tasks, reading, STEP * (2 + items)


def check_minutes(folder: Path) -> list[str]:
    """One line for each page with tasks in a folder of Markdown whose minutes are not the sum of its parts."""
    problems = []
    for path in sorted(folder.glob("*.md")):
        text = path.read_text(encoding="utf-8")
        if not TASK.search(text):
            continue
        parts, total = parts_of(text), TOTAL.search(text)
        if total is None or int(total[1]) != sum(parts):
            tasks, reading, rest = parts
            problems.append(
                f"{path.name}: {tasks} minutes of tasks, {reading} of reading, {rest} of Prove, See and Break: begin "
                f'with <p class="day-facts">{sum(parts)} minutes'
            )
    return problems
