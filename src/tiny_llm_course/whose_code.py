"""What a command of the wheel asks about the code that it runs. In a checkout it may be a learner's: `capabilities`.

An installed wheel has the reference alone, in which nothing is blank, and nothing of the course.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from tiny_llm_engine.machine.repo import IN_CHECKOUT
from tiny_llm_engine.machine.terminal import ends_at


def choose_backend(solution: str, wanted: str) -> str:
    """The port for a name, of which "auto" is the learner's in a checkout, and the machine's elsewhere."""
    if IN_CHECKOUT:
        from . import capabilities

        return capabilities.choose_backend(solution, wanted)
    from tiny_llm_engine.llm import chosen_backend

    with ends_at(ValueError):
        return chosen_backend(wanted)


def filled_options(solution: str, backend: str) -> dict[str, Any]:
    """Options of the engine without what is still blank in the solution."""
    if not IN_CHECKOUT:
        return {}
    from . import capabilities

    return capabilities.engine_options(solution, backend)


def check_filled(solution: str, wanted: str, week: int, day: int, option: str) -> None:
    """Raise ValueError if a task of a day is blank that an option needs, on the port that `choose_backend` gives."""
    if IN_CHECKOUT:
        from . import address, capabilities

        backend = capabilities.choose_backend(solution, wanted)
        capabilities.check_filled(solution, backend, address.Day(week, day), option)


def ends_at_a_blank(week: int, day: int) -> AbstractContextManager[None]:
    """End the command at a blank task of the solution with one line; this day is the last that it needs."""
    if not IN_CHECKOUT:
        return nullcontext()
    from . import address, capabilities

    return capabilities.ends_at_a_blank(needs=address.Day(week, day))
