"""`pdm run see 1.3`: the screen of a day, drawn by the learner's own code."""

import argparse
from collections.abc import Callable
from importlib import import_module
from typing import NoReturn

from rich.console import Console

from tiny_llm_engine.machine.terminal import command, ends_at, fail
from tiny_llm_engine.solutions.port import Port
from tiny_llm_engine.solutions.solution import learners_line
from tiny_llm_extensions.arguments import add_port_arguments, whole_number

from ..address import Day, parse_day
from ..capabilities import ends_at_a_blank, learner_port, ports_of
from ..trace.provenance import warn_if_busy
from ..trace.serve import NoEnd


def screen(day: Day, part: str = ""):
    """The module that draws a day, `tiny_llm_course.see.week_W_day_D`, or a part of its screen."""
    try:
        return import_module(f"tiny_llm_course.see.week_{day.week}_day_{day.day}{part}")
    except ModuleNotFoundError:
        fail(f"day {day} has no {'screen of its graphs' if part else 'screen'}")


@command
def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="pdm run see", description=__doc__)
    parser.add_argument("day", type=parse_day, help="for example 1.3")
    add_port_arguments(parser, solution="tiny_llm")
    text = "of day 2.7: only the screen of this sitting"
    parser.add_argument("--sitting", type=whole_number(1), metavar="N", help=text)
    text = "of day 2.7: counts the programs of prompts, on the torch port"
    parser.add_argument("--graphs", action="store_true", help=text)
    options = parser.parse_args(argv)
    backend = ports_of(learner_port())[0] if options.backend == "auto" else options.backend
    if options.graphs:
        show_graphs(options)
        return
    module = screen(options.day)
    shows = shown(module, options, backend)
    with ends_at_a_blank(needs=options.day):
        port, console = open_port(options.solution, backend, options.device), Console()
        if hasattr(module, "MEASURED"):
            warn_if_busy()
        try:
            for show in shows:
                show(port, console)
        except NoEnd as problem:
            fail(f"see: {problem}")
        except Exception as error:
            end_in_learners_file(error, options.day)


def end_in_learners_file(error: Exception, day: Day) -> NoReturn:
    """End the command with the learner's line that raised; other errors and blank tasks are raised."""
    line = learners_line(error)
    if line is None or isinstance(error, NotImplementedError):
        raise error
    fail(f"{line}; `pdm run test --week {day.week} --day {day.day}` says what is expected", 1)


def shown(module, options: argparse.Namespace, backend: str) -> list[Callable]:
    """The functions that draw a day's screen and its part for this port, or the screen of one sitting."""
    if options.sitting is None:
        return [module.show, *filter(None, [getattr(module, f"show_{backend}", None)])]
    sittings = getattr(module, "SITTINGS", ())
    if not sittings:
        fail(f"day {options.day} has one screen: leave --sitting out")
    if options.sitting > len(sittings):
        fail(f"day {options.day} has {len(sittings)} sittings: give --sitting 1 to {len(sittings)}")
    return [sittings[options.sitting - 1]]


def show_graphs(options: argparse.Namespace) -> None:
    """Count the programs that a compiler for fixed shapes would make. PyTorch port only."""
    module = screen(options.day, "_graphs")
    if options.backend == "mlx":
        fail("--graphs counts programs of the torch port: compilers for fixed shapes take no other")
    with ends_at_a_blank(needs=options.day):
        module.show_graphs(open_port(options.solution, "torch", options.device), Console())


@ends_at(ValueError)  # no such device here
def open_port(solution: str, backend: str, device: str) -> Port:
    return Port(solution, backend, device)


if __name__ == "__main__":
    main()
