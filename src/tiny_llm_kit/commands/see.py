"""`pdm run see 1.3`: the screen of a day, drawn by the learner's own code."""

import argparse
from importlib import import_module

from rich.console import Console

from ..arguments import DEVICES, day_argument
from ..course.address import Day
from ..port import Port
from ..repo import learner_port, ports_of
from ..solution import SOLUTIONS
from ..terminal import fail, replace_unknown_characters
from .blank import ends_at_a_blank


def screen(day: Day):
    """The module that draws a day, `tiny_llm_kit.see.week_W_day_D`."""
    try:
        return import_module(f"tiny_llm_kit.see.week_{day.week}_day_{day.day}")
    except ModuleNotFoundError:
        raise SystemExit(f"day {day} has no screen") from None


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="pdm run see", description=__doc__)
    parser.add_argument("day", type=day_argument, help="for example 1.3")
    parser.add_argument("--solution", default="tiny_llm", choices=sorted(SOLUTIONS))
    parser.add_argument("--backend", default="auto", choices=["auto", "mlx", "torch"])
    parser.add_argument("--device", default="auto", choices=DEVICES)
    options = parser.parse_args(argv)
    replace_unknown_characters()
    backend = ports_of(learner_port())[0] if options.backend == "auto" else options.backend
    module = screen(options.day)
    with ends_at_a_blank(needs=options.day):
        port, console = open_port(options.solution, backend, options.device), Console()
        module.show(port, console)
        if of_this_port := getattr(module, f"show_{backend}", None):
            of_this_port(port, console)


def open_port(solution: str, backend: str, device: str) -> Port:
    try:
        return Port(solution, backend, device)
    except ValueError as error:  # no such device here
        fail(error)


if __name__ == "__main__":
    main()
