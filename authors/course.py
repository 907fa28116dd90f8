"""`pdm run course …`: a learner's progress, and the checks for authors of the course."""

import argparse
import signal
import sys
from pathlib import Path

from tiny_llm_course.address import parse_day
from tiny_llm_course.capabilities import ports_of
from tiny_llm_course.commands.course import console, parser
from tiny_llm_course.trace.text import counted
from tiny_llm_course.tree import days
from tiny_llm_engine.machine.repo import ROOT
from tiny_llm_engine.machine.terminal import command
from tiny_llm_extensions.arguments import output_argument, whole_number

from . import stub_files
from .stub_check import problems_of_stubs


def sync(options: argparse.Namespace) -> None:
    if options.check:
        problems = problems_of_stubs()
        console.print("\n".join(problems) or "the stubs are what the reference generates", markup=False)
        sys.exit(1 if problems else 0)
    try:
        changed, kept = stub_files.sync(options.backup)
    except stub_files.LearnersWork as work:
        if not work.restored:
            fix = "Add --backup to keep a copy and renew the files"
            sys.exit(f"nothing written: there is work in {work}. {fix}")
        for path in work.restored:
            console.print(f"written again: {path.relative_to(ROOT)}")
        return
    console.print(f"{counted(len(changed), 'file')} renewed" if changed else "nothing to do")
    if kept:
        console.print(f"your text is kept in {kept.relative_to(ROOT)}")


def mutants(options: argparse.Namespace) -> None:
    from .kill_matrix import write_matrix
    from .mutants import report_mutants

    ports = ports_of(options.backend or "all")
    if options.matrix:
        write_matrix(console, [options.day] if options.day else days(), ports, options.matrix)
    else:
        sys.exit(report_mutants(console, options.day, ports))


def house(options: argparse.Namespace) -> None:
    from .house import report_house

    sys.exit(report_house(console))


def prefix(options: argparse.Namespace) -> None:
    from .prefix import report_prefix

    sys.exit(report_prefix(console, ports_of(options.backend or "all")))


def grade(options: argparse.Namespace) -> None:
    from .grade.report import grade_many, grade_one

    # An exception, so that processes are ended and folders removed.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    one = grade_many if options.many else grade_one
    sys.exit(one(console, options))


def export(options: argparse.Namespace) -> None:
    from .export import export as copy

    copy(options.folder, reference=not options.without_reference)
    console.print(f"written: {options.folder}", markup=False)


@command
def main(argv: list[str] | None = None) -> None:
    top, add = parser(__doc__)
    sub = add("sync", sync, "authors: generates the stubs from the reference")
    sub.add_argument("--check", action="store_true", help="only says what is stale or leaks")
    sub.add_argument("--backup", action="store_true", help="renew files that hold work, after a copy of them")
    text = "authors: every wrong solution must be killed by its own task's tests"
    sub = add("mutants", mutants, text)
    sub.add_argument("--day", type=parse_day)
    text = "run every test on each, and write which tests kill which"
    sub.add_argument("--matrix", type=output_argument, metavar="FILE", help=text)
    add("house", house, "authors: lines of each room, the learner's share, and what a day imports")
    add("prefix", prefix, "authors: each day needs only the days before it")
    sub = add("grade", grade, "teachers: grades what somebody hands in; docs/grading.md")
    sub.add_argument("submission", type=Path, metavar="FOLDER|ZIP")
    sub.add_argument("--many", action="store_true", help="every folder and zip file in this folder")
    sub.add_argument("--week", type=int, action="append", help="only these weeks (default: all)")
    sub.add_argument("--day", type=parse_day, action="append", help="only these days, as 2.7")
    sub.add_argument("--seconds", type=whole_number(1), default=20, help="per test (default 20)")
    text = "gigabytes of one process (default 4)"
    sub.add_argument("--memory", type=whole_number(1), default=4, metavar="GB", help=text)
    sub.add_argument("--json", type=output_argument, metavar="FILE", help="the results, as a file")
    text = "with --many: a folder for results.csv, results.html and a JSON file each (default: grades)"
    sub.add_argument("--output", type=Path, default=Path("grades"), metavar="FOLDER", help=text)
    sub = add("export", export, "teachers: a copy of the course to hand out")
    sub.add_argument("folder", type=Path)
    text = "no solutions in it, so `skip` has nothing to fill from"
    sub.add_argument("--without-reference", action="store_true", help=text)
    options = top.parse_args(argv)
    options.run(options)


if __name__ == "__main__":
    main()
