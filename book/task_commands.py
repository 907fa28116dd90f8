"""The command that tests a task, below the last of its hints: `pdm run test --week 3 --day 3 --task 2`."""

import re

SECTION = re.compile(r"^(?=## |### Task \d)", re.MULTILINE)
ADDRESS = re.compile(r"### Task (\d+)\.(\d+)\.(\d+)")
HINTS = re.compile(r'<details class="hint">.*?</details>\n*', re.DOTALL)


def add(text):
    """`text` with its command after each task."""
    return "".join(with_command(section) for section in SECTION.split(text))


def with_command(section):
    address = ADDRESS.match(section)
    if address is None:
        return section
    week, day, task = address.groups()
    end = max((hint.end() for hint in HINTS.finditer(section)), default=len(section))
    command = f"```sh\npdm run test --week {week} --day {day} --task {task}\n```\n\n"
    return f"{section[:end].rstrip()}\n\n{command}{section[end:]}"
