"""Runs one process of a submission with limits of time, memory and processes, and where possible without a network.

On Linux `unshare` gives it namespaces of its own. There is no network there; the whole disk can be read but not
written, except the copy that is graded; the reference is covered; and all of its processes end with the first. Where
there is no `unshare`, or a container forbids it, the limits alone remain.

On Linux the process also ends when the grader is killed: the kernel sends the signal.
"""

import ctypes
import os
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

from tiny_llm_course.tree import ANSWERS

NAMESPACES = ("unshare", "--map-root-user", "--net", "--mount", "--pid", "--fork", "--kill-child")
# $1 is the copy, $2 what is covered. A file system that refuses to become read-only, as /proc does, stays as it is.
CLOSE = r"""
while read -r _ at _; do
    case $at in /proc*|/sys*|/dev*) ;; *) mount -o remount,bind,ro "$at" 2>/dev/null || : ;; esac
done < /proc/self/mounts
mount --bind "$1" "$1" && mount -o remount,bind,rw "$1" && cd "$1" || exit 99
[ ! -d "$2" ] || mount -t tmpfs none "$2" || exit 99
shift 2
exec "$@"
"""
MOST_PROCESSES = 64
FILE_BYTES = 256_000_000  # of each file that it writes
POLL = 0.1  # seconds between two looks at its memory
PAGE = os.sysconf("SC_PAGE_SIZE")
# A system call for which Python has no name. None on a Mac, where a grader that is killed leaves its process behind.
PRCTL = getattr(ctypes.CDLL(None), "prctl", None)
PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Limits:
    """Limits of one process."""

    seconds: float
    memory: int  # bytes, of it and of all that it starts


@dataclass(frozen=True)
class Ended:
    """How a process ended."""

    why: str  # in words
    last_line: str  # of its output
    seconds: float
    memory: int  # bytes, the most that was seen; what processes share counts in each of them


def run(command: Sequence[str], folder: Path, environment: dict[str, str], limits: Limits) -> Ended:
    """Run a command in a folder, the only one that it may write, until it ends or exceeds a limit.

    Its output is no result: only the last line is kept, which may say why it ended.
    """
    inside = [*NAMESPACES, "sh", "-c", CLOSE, "sh", str(folder), str(ANSWERS)] if has_namespaces() else []
    with TemporaryFile() as output:
        process = subprocess.Popen(
            [*inside, *command],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=lambda: _limit(limits),
        )
        started = time.monotonic()
        why, memory = _watch(process, limits)
        seconds = time.monotonic() - started
        return Ended(why or _in_words(process.returncode), _last_line(output), seconds, memory)


def _watch(process: subprocess.Popen, limits: Limits) -> tuple[str | None, int]:
    """Wait for a process to end, and end it at a limit: which one, and the most memory that was seen."""
    started, most, why = time.monotonic(), 0, None
    try:
        while why is None and process.poll() is None:
            processes, memory = usage(process.pid)
            most = max(most, memory)
            why = _exceeded(time.monotonic() - started, processes, memory, limits)
            with suppress(subprocess.TimeoutExpired):
                process.wait(POLL)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return why, most


def _last_line(output: IO[bytes]) -> str:
    output.seek(max(0, output.seek(0, os.SEEK_END) - 2000))
    lines = output.read().decode("utf-8", "replace").split("\n")
    return next(filter(str.strip, reversed(lines)), "")


@cache
def has_namespaces() -> bool:
    """Whether `unshare` works here."""
    if shutil.which("unshare") is None:
        return False
    tried = subprocess.run([*NAMESPACES, "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True)
    return tried.returncode == 0


def _limit(limits: Limits) -> None:
    """The system's own limits: an allocation that is too large fails at once, before anybody looks."""
    if PRCTL:
        PRCTL(PR_SET_PDEATHSIG, signal.SIGKILL)
    for kind, most in (
        (resource.RLIMIT_DATA, limits.memory),
        (resource.RLIMIT_FSIZE, FILE_BYTES),
        (resource.RLIMIT_CORE, 0),
    ):
        with suppress(ValueError, OSError):  # the system allows less than that already
            resource.setrlimit(kind, (most, most))


def _exceeded(seconds: float, processes: int, memory: int, limits: Limits) -> str | None:
    """The limit that is exceeded, in words."""
    if seconds > limits.seconds:
        return f"stopped after {limits.seconds:g} s"
    if processes > MOST_PROCESSES:
        return f"stopped above {MOST_PROCESSES} processes"
    return f"stopped above {limits.memory / 1e9:g} GB of memory" if memory > limits.memory else None


def _in_words(code: int) -> str:
    number = -code if code < 0 else code - 128
    if number in {*map(int, signal.Signals)}:
        return f"its process was ended by {signal.Signals(number).name}"
    return f"its process ended by itself with exit code {code}"


def usage(root: int) -> tuple[int, int]:
    """The number of processes that a process has started, itself among them, and the bytes they hold.

    Zeros where there is no `/proc`: there memory is not watched.
    """
    parents, held = {}, {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended meanwhile
            fields = stat.read_text(errors="replace").rpartition(")")[2].split()
            parents[int(stat.parent.name)], held[int(stat.parent.name)] = int(fields[1]), int(fields[21])
    family = {root} & parents.keys()
    while more := {child for child, parent in parents.items() if parent in family} - family:
        family |= more
    return len(family), PAGE * sum(held[each] for each in family)
