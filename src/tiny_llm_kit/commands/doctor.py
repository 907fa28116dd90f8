"""`pdm run doctor`: what is installed, what is missing, and the command that repairs it.

Prints a table on a terminal, plain lines elsewhere. The exit code is 1 if the course cannot run.
"""

import argparse
import importlib.util
import sys

from ..course.doctor.checks import CHECKS, Check, run
from ..terminal import command

MARKS = {"ok": "ok", "warn": "note", "missing": "MISSING"}
STYLES = {"ok": "green", "warn": "yellow", "missing": "bold red"}


@command
def main(argv: list[str] | None = None) -> int:
    argparse.ArgumentParser(prog="pdm run doctor", description=__doc__).parse_args(argv)
    results = [run(check) for check in CHECKS]
    if sys.stdout.isatty() and importlib.util.find_spec("rich"):
        show_table(results)
    else:
        show_lines(results)
    missing = [result.name for result in results if result.status == "missing"]
    print(
        f"needed and missing: {', '.join(missing)}" if missing else "everything that the course needs is here"
    )
    return 1 if missing else 0


def show_lines(results: list[Check]) -> None:
    for result in results:
        print(f"{MARKS[result.status]:8}{result.name:15}{result.detail}")
        if result.fix:
            print(f"{'':23}-> {result.fix}")


def show_table(results: list[Check]) -> None:
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
        table.add_row(Text(MARKS[result.status], style=STYLES[result.status]), result.name, found)
    Console().print(table)


if __name__ == "__main__":
    sys.exit(main())
