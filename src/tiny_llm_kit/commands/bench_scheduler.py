"""`pdm run bench-scheduler`: what a step costs besides the model, by how many requests wait."""

import argparse

from rich.console import Console
from rich.progress import track

from ..course.address import Day
from ..course.capabilities import ends_at_a_blank
from ..lab.bench.kept import keep
from ..lab.bench.reports import show
from ..lab.bench.scheduler import SchedulerPlan, measure
from ..runtime.arguments import whole_number
from ..runtime.port import SOLUTIONS, resolve_serving


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="pdm run bench-scheduler", description=__doc__, allow_abbrev=False)
    add = top.add_argument
    add("--solution", default="ref", choices=sorted(SOLUTIONS))
    add(
        "--waiting",
        type=whole_number(1),
        nargs="+",
        default=list(SchedulerPlan.waiting),
        help="requests that wait",
    )
    add("--steps", type=whole_number(1), default=SchedulerPlan.steps, help="of one sample")
    add(
        "--rounds", type=whole_number(1), default=SchedulerPlan.rounds, help="samples of each, taken in turns"
    )
    add("--save", metavar="NAME", help="keep the sealed result as benchmark_results/NAME.json")
    return top


def main(argv: list[str] | None = None) -> None:
    options, console = parser().parse_args(argv), Console()
    plan = SchedulerPlan(tuple(sorted(set(options.waiting))), options.steps, options.rounds)
    with ends_at_a_blank(needs=Day(2, 7)):
        result = measure(
            plan, resolve_serving(options.solution), lambda rounds: track(rounds, console=console)
        )
    show(console, result)
    keep(console, result, options.save, argv)


if __name__ == "__main__":
    main()
