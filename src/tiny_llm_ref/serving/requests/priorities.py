"""The two classes of requests. Given."""

PRIORITIES = ("interactive", "batch")


def check_priority(priority: str) -> str:
    """Returns the priority.

    Raises:
        ValueError: there is no such class.
    """
    if priority not in PRIORITIES:
        raise ValueError(f"priority is {priority!r}: choose {' or '.join(PRIORITIES)}")
    return priority
