"""What every command does with its terminal: it prints what the terminal can show, and one line when it must end."""

import io
import sys
from typing import NoReturn


def replace_unknown_characters() -> None:
    """A terminal may know fewer characters than the course and the model write: it gets "?" for the others."""
    for stream in (sys.stdin, sys.stdout):
        if isinstance(stream, io.TextIOWrapper):  # a closed one is None, and a notebook has its own
            stream.reconfigure(errors="replace")


def fail(problem: object) -> NoReturn:
    """Ends the command with one line on standard error and exit code 2."""
    print(problem, file=sys.stderr)
    sys.exit(2)
