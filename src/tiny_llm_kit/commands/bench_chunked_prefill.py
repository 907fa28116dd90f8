"""`pdm run bench-chunked-prefill`: chunks of every size and none: what each size wins and costs."""

import argparse
from typing import Any

from rich.console import Console

from ..course.address import Day
from ..course.capabilities import choose_backend, ends_at_a_blank, load
from ..lab.bench.chunked_prefill import SweepPlan, measure, number_of_runs
from ..lab.bench.options import bench_parser, plan_of
from ..lab.bench.progress import Progress
from ..lab.bench.reports import show_and_keep
from ..lab.bench.shapes import SHAPES, random_runner
from ..lab.serve import NoEnd, Serving
from ..runtime.arguments import whole_number
from ..runtime.port import SOLUTIONS, Port, resolve_serving
from ..terminal import command, fail


def parser() -> argparse.ArgumentParser:
    top = bench_parser("chunked-prefill", __doc__, SweepPlan, ("auto",))
    says = "instead of --model: a shape with random weights"
    top.add_argument("--config", choices=sorted(SHAPES), help=says)
    top.add_argument("--layers", type=whole_number(1), help="with --config: fewer layers than the shape has")
    return top


def load_model(options: argparse.Namespace, backend: str) -> tuple[Any, str]:
    """A runner, of a model's files or of a shape with random weights; and its name."""
    where = {"backend": backend, "device": options.device, "dtype": options.dtype}
    if options.config is None:
        runner, _ = load(options.model, solution=options.solution, **where)
        return runner, options.model
    layers = f", {options.layers} layers" if options.layers else ""
    port = Port(SOLUTIONS[options.solution], **where)
    return random_runner(port, options.config, options.layers), f"{options.config}{layers}, random weights"


def run(options: argparse.Namespace, console: Console) -> dict[str, Any]:
    backend = choose_backend(options.solution, options.backend)
    model, name = load_model(options, backend)
    model.kit.set_threads(options.threads)
    dtype = model.kit.default_dtype(model.device) if options.dtype == "auto" else options.dtype
    steps = dict.fromkeys([*options.steps, None])  # with none, which all are compared with
    plan = plan_of(SweepPlan, options, model=name, dtype=dtype, steps=list(steps))
    serving = Serving(resolve_serving(options.solution), model)
    with Progress(console, number_of_runs(plan)) as progress:
        return measure(plan, serving, backend, model.device, progress)


@command
def main(argv: list[str] | None = None) -> None:
    options, console = parser().parse_args(argv), Console()
    with ends_at_a_blank(needs=Day(2, 7)):
        try:
            result = run(options, console)
        except (ValueError, NoEnd) as error:
            fail(error)
    show_and_keep(console, result, options, argv)


if __name__ == "__main__":
    main()
