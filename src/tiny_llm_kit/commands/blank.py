"""What a command does when it reaches code that the learner has not written yet."""

import functools
import sys
from collections.abc import Callable

from ..course.address import task_of_label


def ends_at_a_blank(command: Callable) -> Callable:
    """The command ends with one line that names the blank task and says how to see the reference instead."""

    @functools.wraps(command)
    def run(*args, **kwargs):
        try:
            return command(*args, **kwargs)
        except NotImplementedError as blank:
            found = task_of_label(str(blank))
            if found is None:
                raise
            task = found[0]
            sys.exit(
                f"blank: {blank}. Read its chapter in `pdm run book`, or fill it with "
                f"`pdm run course skip --through {task.of_day}`; to see the reference, add `--solution ref`"
            )

    return run
