"""Numbers the hints of each task: `Hint: the loop` in a chapter becomes `Hint 2 of 4: the loop` on its page."""

import re

TASK = re.compile(r"^(?=### Task )", re.MULTILINE)
HINT = re.compile(r'(<details class="hint">\s*<summary>\s*Hint)(?=[:\s])')


def number(text):
    """`text` with the hints below each task's heading counted."""
    return "".join(numbered(section) for section in TASK.split(text))


def numbered(section):
    count, found = len(HINT.findall(section)), iter(range(1, len(section)))
    return HINT.sub(lambda match: f"{match[1]} {next(found)} of {count}", section)
