"""What a collected test grades, and what it runs on."""

import pytest

from ..address import Task, parse_task


def task_of(item: pytest.Item) -> Task | None:
    """The task that a test grades."""
    mark = item.get_closest_marker("task")
    return mark and parse_task(mark.args[0])


def place_of(item: pytest.Item) -> Task | None:
    """The task after whose own tests a test runs: a later one that it also needs, or the one that it grades."""
    mark = item.get_closest_marker("task")
    return mark and parse_task(mark.kwargs.get("after", mark.args[0]))


def port_of(item: pytest.Item) -> str | None:
    """The port that a test runs on; None for a test of the policy."""
    return getattr(getattr(item, "callspec", None), "params", {}).get("b")
