"""`pdm run lab`: the scheduler in virtual time, and what it finds beside the figures of Sarathi-Serve."""

import argparse
import json
import sys
from pathlib import Path

from rich.console import Console

from ..course.address import Day
from ..course.capabilities import ends_at_a_blank
from ..lab.bench.provenance import provenance
from ..lab.bench.reports import show_and_keep
from ..lab.studies.catalogue import ALL, STUDIES
from ..lab.studies.hardware import HARDWARE
from ..lab.studies.served import StudyPlan
from ..runtime.arguments import whole_number
from ..runtime.port import SOLUTIONS, resolve_serving
from ..terminal import check_outputs, command, write_file


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="pdm run lab", description=__doc__, allow_abbrev=False)
    add = top.add_argument
    says = f"of {', '.join(STUDIES)}; default: all but scale"
    add("studies", nargs="*", metavar="STUDY", help=says)
    add("--solution", default="ref", choices=sorted(SOLUTIONS), help="whose scheduler")
    add("--hardware", default="yi-34b", choices=list(HARDWARE), help="whose steps; default: yi-34b")
    add("--requests", type=whole_number(1), default=128, metavar="N", help="of each run; default: 128")
    says = "of lengths and arrivals; figures are medians over them; default: 0 1 2"
    add("--seeds", type=whole_number(0), nargs="+", default=[0, 1, 2], metavar="N", help=says)
    add("--json", type=Path, metavar="FILE", help="also write every figure there")
    add("--save", metavar="NAME", help="keep each sealed result as benchmark_results/NAME-STUDY.json")
    return top


def parse(argv: list[str] | None) -> argparse.Namespace:
    top = parser()
    options = top.parse_args(argv)
    unknown = [name for name in options.studies if name not in STUDIES]
    if unknown:
        top.error(f"no study {unknown[0]!r}: choose from {', '.join(STUDIES)}")
    return options


@command
def main(argv: list[str] | None = None) -> None:
    options, console, results = parse(argv), Console(highlight=False), []
    typed = [word for word in (sys.argv[1:] if argv is None else argv) if word not in options.studies]
    check_outputs(options.json)
    with ends_at_a_blank(needs=Day(3, 3)):
        plan = StudyPlan(
            resolve_serving(options.solution), options.hardware, options.requests, tuple(options.seeds)
        )
        for name in options.studies or ALL:
            before = provenance("cpu")
            with console.status(f"{name} …", refresh_per_second=1):
                found = STUDIES[name](plan)
            results.append(found.result(plan.options, before))
            keeps = argparse.Namespace(save=f"{options.save}-{name}" if options.save else None)
            show_and_keep(console, results[-1], keeps, [name, *typed])
            console.print()
    if options.json:
        write_file(options.json, json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
