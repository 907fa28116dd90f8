"""`pdm run bench-roofline`: calls of 1 token and of many, under the roofs of this machine: memory and arithmetic."""

from rich.console import Console

from tiny_llm_kit.course.address import Day
from tiny_llm_kit.course.capabilities import choose_backend, ends_at_a_blank
from tiny_llm_kit.engine.port import SOLUTIONS, Port
from tiny_llm_kit.terminal import command, fail

from .options import bench_parser, plan_of
from .progress import Progress
from .reports import show_and_keep
from .roofline import RooflinePlan, measure


@command
def main(argv: list[str] | None = None) -> None:
    options, console = bench_parser("roofline", __doc__, RooflinePlan, ("auto",)).parse_args(argv), Console()
    backend = choose_backend(options.solution, options.backend)
    with ends_at_a_blank(needs=Day(2, 5)):
        try:
            port = Port(SOLUTIONS[options.solution], backend, options.device, options.dtype)
            sizes = {name: sorted(set(getattr(options, name))) for name in ("tokens", "threads")}
            plan = plan_of(RooflinePlan, options, dtype=port.float_dtype, **sizes)
            with Progress(console, len(plan.threads) * plan.rounds) as progress:
                result = measure(plan, port, progress.over)
        except ValueError as error:
            fail(error)
    show_and_keep(console, result, options, argv)


if __name__ == "__main__":
    main()
