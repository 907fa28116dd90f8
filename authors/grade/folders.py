"""Temporary folders of the grader. Each names the process that made it: one that is killed cannot remove its own."""

import os
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir

PREFIX = "tiny-llm-grade-"


def temporary_folder() -> TemporaryDirectory[str]:
    """A folder for a `with`, gone after it."""
    return TemporaryDirectory(prefix=f"{PREFIX}{os.getpid()}-", ignore_cleanup_errors=True)


def remove_stale_folders() -> None:
    """Remove what graders that were killed have left. A folder whose number another process has by now stays."""
    for folder in Path(gettempdir()).glob(f"{PREFIX}*-*"):
        number = folder.name.removeprefix(PREFIX).partition("-")[0]
        if number.isdecimal() and not _is_alive(int(number)):
            shutil.rmtree(folder, ignore_errors=True)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # somebody else's
        return True
    return True
