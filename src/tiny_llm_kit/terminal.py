"""What every command does with its terminal: it prints what the terminal can show, and one line when it must end."""

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

INTERRUPTED = 130  # what a shell reports for a command that Ctrl-C ended


def replace_unknown_characters() -> None:
    """A terminal may know fewer characters than the course and the model write: it gets "?" for the others."""
    for stream in (sys.stdin, sys.stdout):
        if isinstance(stream, io.TextIOWrapper):  # a closed one is None, and a notebook has its own
            stream.reconfigure(errors="replace")


def fail(problem: object) -> NoReturn:
    """Ends the command with one line on standard error and exit code 2."""
    print(problem, file=sys.stderr)
    sys.exit(2)


def write_file(file: Path, text: str) -> None:
    """Writes what an option asks for, and says so; where that cannot be, the command ends with one line."""
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        fail(f"{file}: cannot be written ({error.strerror})")
    print(f"\nwritten: {file}")


@contextmanager
def ends_quietly() -> Iterator[None]:
    """Ctrl-C, and a reader of the output that goes away, end the command without a traceback."""
    try:
        yield
        if sys.stdout is not None:
            sys.stdout.flush()  # what is still held back may be what the reader does not want
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except BrokenPipeError:  # what Python writes at its end must not fail again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
