"""Addresses of the course: `1.3` is a day, `1.3.2` a task of that day."""

import re
from argparse import ArgumentTypeError
from pathlib import Path
from typing import NamedTuple


class Day(NamedTuple):
    week: int
    day: int

    def __str__(self) -> str:
        return f"{self.week}.{self.day}"

    @property
    def slug(self) -> str:
        """Prefix of the names of the day's test and mutant files."""
        return f"week_{self.week}_day_{self.day}"

    def files(self, folder: Path, prefix: str = "") -> list[Path]:
        """The day's files in a folder, in order.

        They are `week_2_day_7.py`, or for a large day `week_2_day_7_masks.py` and so on.
        """
        return [*folder.glob(f"{prefix}{self.slug}.py"), *sorted(folder.glob(f"{prefix}{self.slug}_*.py"))]


class Task(NamedTuple):
    week: int
    day: int
    number: int

    def __str__(self) -> str:
        return f"{self.week}.{self.day}.{self.number}"

    @property
    def of_day(self) -> Day:
        return Day(self.week, self.day)

    def label(self, qualname: str) -> str:
        """The message of a blank function."""
        return f"week {self.week} day {self.day} task {self.number}: {qualname}"


LABEL = re.compile(r"week (\d+) day (\d+) task (\d+): ([\w.<>]+)")


def task_of_label(text: str) -> tuple[Task, str] | None:
    """The task and the function that the message of a blank exercise names; None for any other message."""
    match = LABEL.fullmatch(text)
    return match and (Task(*map(int, match.groups()[:3])), match[4])


def parse_day(text: str) -> Day:
    """A day, as `1.3`; also the type of an argument.

    Raises:
        ArgumentTypeError: the text has another form.
    """
    return Day(*_numbers(text, 2, "a day is WEEK.DAY, for example 1.3"))


def parse_task(text: str) -> Task:
    """A task, as `1.3.2`, like `parse_day`."""
    return Task(*_numbers(text, 3, "a task is WEEK.DAY.TASK, for example 1.3.2"))


def _numbers(text: str, count: int, rule: str) -> list[int]:
    if not re.fullmatch(r"\d+" + r"\.\d+" * (count - 1), text):
        raise ArgumentTypeError(f"{text!r}: {rule}")
    return [int(part) for part in text.split(".")]
