"""`pdm run bench-scheduler`: cost of a scheduler step without the model, by number of waiting requests."""

from rich.console import Console
from rich.progress import track

from tiny_llm_kit.course.address import Day
from tiny_llm_kit.course.capabilities import ends_at_a_blank
from tiny_llm_kit.engine.port import resolve_serving
from tiny_llm_kit.terminal import command

from .options import bench_parser, plan_of
from .reports import show_and_keep
from .scheduler import SchedulerPlan, measure


@command
def main(argv: list[str] | None = None) -> None:
    options, console = bench_parser("scheduler", __doc__, SchedulerPlan).parse_args(argv), Console()
    plan = plan_of(SchedulerPlan, options, waiting=sorted(set(options.waiting)))
    with ends_at_a_blank(needs=Day(2, 7)):
        result = measure(
            plan, resolve_serving(options.solution), lambda rounds: track(rounds, console=console)
        )
    show_and_keep(console, result, options, argv)


if __name__ == "__main__":
    main()
