"""`pdm run test-all`: run every check that this machine can run, after installing what is missing.

That is the authors' tools, by their lock file, and the torch port. `--smoke` needs neither.
"""

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from tiny_llm_course.doctor import authors_tools
from tiny_llm_course.tree import days
from tiny_llm_engine.machine.installation import installed_backends
from tiny_llm_engine.machine.repo import ROOT, command_modules
from tiny_llm_engine.machine.terminal import command

Check = tuple[str, list[str]]

INSTALLATION: Check = ("the torch port is missing: installing it", ["setup-torch"])
TOOLS_COST = "500 MB in about 30 seconds"
# One test process per core; the checks of the course that run beside them are single processes.
WORKERS = max(2, min(8, os.cpu_count() or 1))
# The prefix check runs the day tests on the reference's text, too. But it compiles kernels for any processor: those of
# kernels run on this one's as well.
IN_THE_PREFIX_CHECK = ("tests/test_week_[123]_*", "tests/test_week_4_day_[23456]*")
TESTS: Check = (
    "the tests of the product, and those of kernels on the reference",
    [
        # Both plugins cost time in each test, and none needs their fixtures.
        *shlex.split(f"test-refsol -- -n {WORKERS} --dist worksteal -p no:anyio -p no:schemathesis"),
        *(f"--ignore-glob={glob}" for glob in IN_THE_PREFIX_CHECK),
    ],
)
LONG = "--long"
LONG_ADDS = (
    "two real trainings of three steps, whose weights must be equal to the byte: 20 s; two minutes of soaking, and "
    "200 clients of the server; the day tests with two threads"
)
COURSE: list[Check] = [
    (
        "the day tests, each with the reference's text up to its day, then without its task",
        ["course", "prefix"],
    ),
    ("the mutants: each wrong solution is caught", ["course", "mutants"]),
]
# For learners who want to know in a minute whether this machine can do the course.
SMOKE: list[Check] = [
    ("an answer of the reference", ["main", "--solution", "ref", "--prompt", "What is a KV cache?"]),
    ("the tests of Week 1 on the reference", ["test-refsol", "--week", "1"]),
]
SECONDS_OF_TWO_CORES = 340  # of all checks, on a quiet machine
NOT_INHERITED = re.compile("PYTEST_(ADDOPTS|DISABLE_PLUGIN_AUTOLOAD|PLUGINS)|PYTHONDONTWRITEBYTECODE")
SOAKS: list[Check] = [
    ("the soak: every answer under pressure is that of the request alone", ["soak", "--minutes", "2"]),
    ("the soak of the server: its clients, too", ["soak", "--server", "--clients", "200"]),
]
# A learner's tests use the libraries' default number of threads; all other checks here use one.
TWO_THREADS: list[Check] = [
    (f"the day tests of week {week} with two threads", ["test-refsol", "--week", str(week)])
    for week in sorted({day.week for day in days()})
]


@command
def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="pdm run test-all", description=__doc__)
    parser.add_argument(LONG, action="store_true", help=f"also the tests of the machine: {LONG_ADDS}")
    parser.add_argument(
        "--smoke", action="store_true", help="an answer and Week 1's tests alone, in a minute"
    )
    options = parser.parse_args(argv)
    failed = run(SMOKE) if options.smoke else run_everything(options.long)
    if not (options.long or options.smoke):
        print(f"not run: {LONG_ADDS} (add {LONG})")
    for title in failed:
        print(f"FAILED: {title}")
    sys.exit(1 if failed else 0)


def run_everything(long: bool) -> list[str]:
    """Say how long it takes, install what is missing, and run all checks; return the titles of failures."""
    minutes = max(3, round(SECONDS_OF_TWO_CORES * 2 / WORKERS / 60)) + 6 * long
    print(f"all checks take about {minutes} minutes on {WORKERS} cores; --smoke takes one", flush=True)
    failed = install_tools()
    if "torch" not in installed_backends():
        failed += run([INSTALLATION])
        print("two ports are installed now: `pdm run course port` shows which one you work on, and sets it")
    return failed + run_all(long)


def install_tools() -> list[str]:
    """Install the authors' tools if any is missing; return the title if that failed."""
    missing, line = authors_tools.missing_tools(), authors_tools.INSTALL
    if not missing:
        return []
    print(
        f"== {', '.join(missing)} missing: installing the authors' tools, {TOOLS_COST}: `{line}`", flush=True
    )
    pdm, *arguments = shlex.split(line)
    if (program := shutil.which(pdm)) is None:
        return [f"there is no pdm on the PATH: run `{line}`"]
    return [line] if subprocess.run([program, *arguments], cwd=ROOT).returncode else []


def run_all(long: bool = False) -> list[str]:
    """Run the tests and the course checks side by side; return the titles of failures."""
    title, arguments = TESTS
    with ThreadPoolExecutor() as pool:
        course = pool.submit(run, COURSE, capture=True)
        failed = run([(title, arguments + [LONG] * long)]) + course.result()
    return failed + run(SOAKS * long) + run(TWO_THREADS * long, threads=2)


def run(checks: list[Check], capture: bool = False, threads: int = 1) -> list[str]:
    """Run checks one after the other; return the titles of failures."""
    return [title for title, arguments in checks if call(title, arguments, capture, threads)]


def call(title: str, arguments: list[str], capture: bool = False, threads: int = 1) -> int:
    """Run a command in a separate process and print its time; captured output comes last."""
    started = time.monotonic()
    name, *arguments = arguments
    if not capture:
        print(f"== {title}", flush=True)
    done = subprocess.run(
        [sys.executable, "-m", command_modules()[name], *arguments],
        cwd=ROOT,
        env=_environment(threads),
        stdout=subprocess.PIPE if capture else None,
        stderr=subprocess.STDOUT if capture else None,
        encoding="utf-8",
        errors="replace",
    )
    if capture:
        print(f"== {title}\n{done.stdout}", end="")
    how = "failed" if done.returncode else "passed"
    print(f"== {how} in {time.monotonic() - started:.0f} s\n", flush=True)
    return done.returncode


def _environment(threads: int) -> dict[str, str]:
    """Environment of a check, with one thread for each of the processes that run side by side.

    Options that users set for their own pytest runs, such as `-x` or `-k`, are dropped. Bytecode is kept even if the
    machine's setting forbids it: otherwise each of more than a hundred processes would compile the libraries.
    """
    mine = {name: value for name, value in os.environ.items() if not NOT_INHERITED.fullmatch(name)}
    return mine | {"OMP_NUM_THREADS": str(threads), "OPENBLAS_NUM_THREADS": str(threads)}


if __name__ == "__main__":
    main()
