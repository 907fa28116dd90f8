"""What a kernel answers while a task of Day 4.1 is blank. Given."""

from collections.abc import Mapping


def check_task(number: int, tasks: Mapping[int, str]) -> None:
    """Raises NotImplementedError with the address of a blank task.

    Args:
        number: what the kernel has returned: a task of Day 4.1, or 0.
        tasks: the function of each task.
    """
    if number:
        raise NotImplementedError(f"week 4 day 1 task {number}: {tasks[number]}")
