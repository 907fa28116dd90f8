"""Types of command-line arguments. argparse shows the message of an ArgumentTypeError, and of no other error."""

import argparse
from collections.abc import Callable

from .course.address import Day, Task, parse_day, parse_task

DEVICES = ("auto", "cpu", "gpu", "cuda", "hpu")


def day_argument(text: str) -> Day:
    """A day, as `1.3`."""
    return _explained(parse_day, text)


def task_argument(text: str) -> Task:
    """A task, as `1.3.2`."""
    return _explained(parse_task, text)


def _explained(parse: Callable, text: str):
    try:
        return parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def model_argument(text: str) -> str:
    """A model's name. An empty one would be the current folder."""
    if not text:
        raise argparse.ArgumentTypeError("is empty: give a shipped name, a folder or a hub id")
    return text


def whole_number(smallest: int, largest: int = 2**63 - 1) -> Callable[[str], int]:
    """The type of a whole number within these bounds; what the array libraries count with ends at 2⁶³ - 1."""

    def parse(text: str) -> int:
        digits = text.isdecimal() and len(text) <= len(str(largest))  # Python converts no text of 5000 digits
        if not digits or not smallest <= int(text) <= largest:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {smallest} to {largest}")
        return int(text)

    return parse
