"""How many threads a kernel gets from a port whose array library has no number of its own."""

import os

SMALL = 2**20  # bytes that one thread reads sooner than it wakes another one


def threads_for(size: int) -> int:
    """The threads for a kernel that reads this many bytes, those read for several rows counted as often."""
    return available_threads() if size >= SMALL else 1


def available_threads() -> int:
    """OMP_NUM_THREADS, if it is a number; else the cores that this process may use."""
    wanted = os.environ.get("OMP_NUM_THREADS", "")
    if wanted.isdecimal() and int(wanted) > 0:
        return int(wanted)
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # macOS
        return os.cpu_count() or 1
