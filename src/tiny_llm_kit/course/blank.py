"""What a command does when it reaches code that the learner has not written yet."""

import sys
import traceback
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from .address import Day, task_of_label
from .learner import states
from .tree import PARTS


@contextmanager
def ends_at_a_blank(needs: Day, unused: Collection[Day] = ()) -> Iterator[None]:
    """The command ends with one line: the first blank task, how to fill all it needs, how to see the reference.

    Args:
        needs: the last day whose code the command runs.
        unused: earlier days that it does without; one may be blank and yet is not what stopped it.
    """
    try:
        yield
    except NotImplementedError as blank:
        found = task_of_label(str(blank))
        if found is None:
            raise
        fills, first = max(needs, found[0].of_day), _first_blank(_part_of(blank), unused)
        sys.exit(
            f"blank: {first or blank}. Its chapter is in `pdm run book`; `pdm run course skip "
            f"--through {fills}` fills all that this command needs; `--solution ref` shows the reference instead"
        )


def _part_of(blank: NotImplementedError) -> str | None:
    """ "mlx", "torch" or "serving": the part of the solution whose file raised."""
    folder = Path(traceback.extract_tb(blank.__traceback__)[-1].filename).parent.name
    return {name: part for part, name in PARTS.items()}.get(folder)


def _first_blank(part: str | None, unused: Collection[Day]) -> str | None:
    """The address of the earliest blank: a later one may be what stopped the command."""
    blanks = [state for state in states([part] if part else []) if state.status == "blank"]
    blanks = [state for state in blanks if state.task.of_day not in unused]
    return blanks[0].task.label(blanks[0].names[0]) if blanks else None
