"""Where an error happened in the learner's files, for messages of one line."""

import traceback
from pathlib import Path

from ..repo import SOURCES


def place_of(error: BaseException) -> tuple[str, int]:
    """File and line of the last frame of an error that is in the repository's sources."""
    if isinstance(error, SyntaxError) and error.filename:
        return short_path(error.filename), error.lineno or 0
    frames = [
        f for f in traceback.extract_tb(error.__traceback__) if Path(f.filename).is_relative_to(SOURCES)
    ]
    return short_path(frames[-1].filename), frames[-1].lineno or 0


def learners_line(error: BaseException) -> str | None:
    """The last line of a learner's file that an error went through, and the error; None if there is none."""
    learners = SOURCES / "tiny_llm"
    frames = [
        f for f in traceback.extract_tb(error.__traceback__) if Path(f.filename).is_relative_to(learners)
    ]
    if not frames:
        return None
    message = str(error).partition("\n")[0]
    return f"{short_path(frames[-1].filename)}, line {frames[-1].lineno}: {type(error).__name__}: {message}"


def short_path(file: str) -> str:
    """A file of the repository from its root, any other as it is."""
    path = Path(file)
    return str(path.relative_to(SOURCES.parent)) if path.is_relative_to(SOURCES) else file
