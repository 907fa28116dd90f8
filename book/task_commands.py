"""The command that tests a task, under its heading: `pdm run test --week 3 --day 3 --task 2`."""

import re

TASK = re.compile(
    r'^### Task (\d+)\.(\d+)\.(\d+): [^\n]*\n(?:\s*<p class="task-facts">.*?</p>\n)?',
    re.MULTILINE | re.DOTALL,
)


def add(text):
    """`text` with the command of each task, after the line with its minutes and files."""
    return TASK.sub(with_command, text)


def with_command(task):
    week, day, number = task.groups()
    return f"{task[0]}\n```sh\npdm run test --week {week} --day {day} --task {number}\n```\n"
