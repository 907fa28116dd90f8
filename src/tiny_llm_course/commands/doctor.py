"""What is installed, what is missing, and the command that repairs it.

Prints a table on a terminal, plain lines elsewhere. The exit code is 1 if something needed is missing. `--hpu` is the
checklist for a Gaudi instead: it runs the reference's engine there, and writes a file that you can send in. `--model`
shows the memory of an engine, part by part.
"""

import argparse
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path

from tiny_llm_engine.machine.repo import BACKENDS, IN_CHECKOUT, run_line
from tiny_llm_engine.machine.terminal import command

from ..doctor import hpu_checklist
from ..doctor.checks import CHECKS, Check, run
from ..whose_code import choose_backend

MARKS = {"ok": "ok", "warn": "note", "missing": "MISSING"}
FAILED = {**MARKS, "missing": "FAILED"}
STYLES = {"ok": "green", "warn": "yellow", "missing": "bold red"}


@command
def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog=run_line("doctor"), description=__doc__)
    parser.add_argument(
        "--hpu",
        nargs="?",
        const="hpu-report.json",
        type=Path,
        metavar="FILE",
        help="check a Gaudi (default file: %(const)s)",
    )
    parser.add_argument(
        "--model", metavar="NAME", help="load a model, and show where the memory of its engine is"
    )
    parser.add_argument("--backend", default="auto", choices=["auto", *BACKENDS], help="for --model")
    options = parser.parse_args(argv)
    if options.hpu is not None:
        return check_hpu(options.hpu)
    if options.model is not None:
        from ..doctor.model_memory import report  # here: without a model, nothing needs to be installed

        print(*report(options.model, choose_backend("tiny_llm_ref", options.backend)), sep="\n")
        return 0
    results = [run(check) for check in checks_here()]
    show(results)
    missing = [result.name for result in results if result.status == "missing"]
    needed = f"needed and missing: {', '.join(missing)}"
    print(
        needed if missing else f"everything that {'the course' if IN_CHECKOUT else 'tiny-llm'} needs is here"
    )
    return 1 if missing else 0


def checks_here() -> list[Callable[[], Check]]:
    """Those of the library, in a checkout with those of the course."""
    if not IN_CHECKOUT:
        return CHECKS
    from ..doctor.course_checks import all_checks

    return all_checks()


def check_hpu(file: Path) -> int:
    """The checklist for a Gaudi; 1 if anything on it fails."""
    print("compiling and running the engine on the Gaudi: this may take many minutes", flush=True)
    report = hpu_checklist.collect()
    findings = hpu_checklist.judge(report)
    hpu_checklist.write(report, findings, file)
    show(findings, FAILED)
    failed = [finding.name for finding in findings if finding.status == "missing"]
    print(f"failed: {', '.join(failed)}" if failed else "nothing failed")
    print(f"{file} has all of it: read it, then attach it to an issue")
    return 1 if failed else 0


def show(results: list[Check], marks: dict[str, str] = MARKS) -> None:
    if sys.stdout.isatty() and importlib.util.find_spec("rich"):
        show_table(results, marks)
    else:
        show_lines(results, marks)


def show_lines(results: list[Check], marks: dict[str, str]) -> None:
    for result in results:
        print(f"{marks[result.status]:8}{result.name:15}{result.detail}")
        if result.fix:
            print(f"{'':23}-> {result.fix}")


def show_table(results: list[Check], marks: dict[str, str]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for heading in ("", "what", "found, and what repairs it"):
        table.add_column(heading)
    for result in results:
        found = Text(result.detail)
        if result.fix:
            found.append(f"\n-> {result.fix}", style="bold")
        table.add_row(Text(marks[result.status], style=STYLES[result.status]), result.name, found)
    Console().print(table)


if __name__ == "__main__":
    sys.exit(main())
