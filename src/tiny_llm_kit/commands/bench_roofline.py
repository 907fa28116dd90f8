"""`pdm run bench-roofline`: calls of 1 token and of many, under the roofs of this machine: memory and arithmetic."""

import argparse
import os

from rich.console import Console
from rich.progress import track

from ..course.address import Day
from ..course.capabilities import choose_backend, ends_at_a_blank
from ..lab.bench.kept import keep
from ..lab.bench.reports import show
from ..lab.bench.roofline import RooflinePlan, measure
from ..lab.bench.shapes import SHAPES
from ..runtime.arguments import DEVICES, DTYPES, whole_number
from ..runtime.port import SOLUTIONS, Port
from ..terminal import fail


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="pdm run bench-roofline", description=__doc__, allow_abbrev=False)
    add = top.add_argument
    add("--solution", default="ref", choices=sorted(SOLUTIONS))
    add("--backend", default="auto", choices=["auto", "mlx", "torch"])
    add("--device", default="auto", choices=DEVICES)
    add("--dtype", default="auto", choices=DTYPES)
    add(
        "--config",
        default=RooflinePlan.config,
        choices=sorted(SHAPES),
        help="a shape; its weights are random",
    )
    add("--layers", type=whole_number(1), default=RooflinePlan.layers, help="of the shape")
    add("--tokens", type=whole_number(1), nargs="+", default=list(RooflinePlan.tokens), help="of a call")
    both = sorted({1, os.cpu_count() or 1})
    add(
        "--threads", type=whole_number(1), nargs="+", default=both, help="each is measured; the best is shown"
    )
    add("--rounds", type=whole_number(1), default=RooflinePlan.rounds, help="samples of each, taken in turns")
    add("--save", metavar="NAME", help="keep the sealed result as benchmark_results/NAME.json")
    return top


def main(argv: list[str] | None = None) -> None:
    options, console = parser().parse_args(argv), Console()
    backend = choose_backend(options.solution, options.backend)
    with ends_at_a_blank(needs=Day(2, 5)):
        try:
            port = Port(SOLUTIONS[options.solution], backend, options.device, options.dtype)
            plan = RooflinePlan(
                config=options.config,
                layers=options.layers,
                dtype=port.float_dtype,
                tokens=tuple(sorted(set(options.tokens))),
                threads=tuple(sorted(set(options.threads))),
                rounds=options.rounds,
            )
            result = measure(plan, port, lambda rounds: track(rounds, "rounds", console=console))
        except ValueError as error:
            fail(error)
    show(console, result)
    keep(console, result, options.save, argv)


if __name__ == "__main__":
    main()
