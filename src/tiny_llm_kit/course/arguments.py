"""Addresses of the course as command-line arguments."""

import argparse
from collections.abc import Callable

from .address import Day, Task, parse_day, parse_task


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
