"""A process that has imported the large libraries and forks: each fork is a fresh `python -m MODULE ARGUMENTS`.

Importing torch, NumPy and pytest takes longer than most commands of the course. Here they are imported once. A fork
shares nothing else with the tests or with other forks: given code comes from its own PYTHONPATH. What a process
decides before its first import (encoding, locale, the array library's environment) needs a real process.

One line of JSON comes in for each fork, and one with its exit code goes out when it has ended.
"""

import atexit
import contextlib
import gc
import json
import os
import runpy
import sys
from importlib import import_module
from importlib.metadata import entry_points
from typing import NoReturn

# Never MLX, whose BLAS is chosen before it is imported, nor huggingface_hub, which reads its environment once.
LIBRARIES = ("numpy", "torch", "pytest", "hypothesis", "jinja2", "tokenizers", "safetensors")
LIBRARIES += ("rich.console", "rich.markdown", "rich.progress", "rich.table")
# pytest imports its plugins, too, and what they need: half of the time of a fork that runs a few tests.
LIBRARIES += tuple(sorted({plugin.module for plugin in entry_points(group="pytest11")}))


def become(job: dict) -> None:
    """Makes this fork look like a new process: its folder, environment, path, arguments and streams."""
    os.chdir(job["folder"])
    os.environ.clear()
    os.environ.update(job["environment"])
    sys.path[0:1] = [job["folder"], *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    sys.argv = [job["module"], *job["arguments"]]
    sys.dont_write_bytecode = False
    for number, name, mode in ((0, os.devnull, "r"), (1, job["stdout"], "w"), (2, job["stderr"], "w")):
        with open(name, mode) as stream:
            os.dup2(stream.fileno(), number)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 (it stays open; the old one holds the next jobs)


def exit_code_of(module: str) -> int:
    """Runs a module as `python -m` does; what it exits with."""
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
        return 1
    return 0


def leave(code: int) -> NoReturn:
    """Ends this fork. To take all modules apart as well, torch among them, takes a second and changes nothing."""
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def main() -> None:
    for library in LIBRARIES:
        with contextlib.suppress(ImportError):  # a machine of one port has no torch
            import_module(library)
    gc.freeze()  # no fork looks for garbage among what is shared, which would copy it
    answers = os.fdopen(os.dup(1), "w")
    while line := sys.stdin.readline():
        job = json.loads(line)
        child = os.fork()
        if child == 0:
            become(job)
            leave(exit_code_of(job["module"]))
        _, status = os.waitpid(child, 0)
        print(json.dumps(os.waitstatus_to_exitcode(status)), file=answers, flush=True)


if __name__ == "__main__":
    main()
