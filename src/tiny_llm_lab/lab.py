"""`pdm run lab`: experiments with the scheduler in virtual time, compared with the figures of Sarathi-Serve."""

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated

from rich.console import Console

from tiny_llm_course.address import Day
from tiny_llm_course.capabilities import choose_backend, ends_at_a_blank
from tiny_llm_course.trace.provenance import keep, provenance, result_argument
from tiny_llm_engine.machine.terminal import command, ends_at, write_file
from tiny_llm_engine.solutions.port import Port
from tiny_llm_engine.solutions.solution import SOLUTIONS, resolve_serving
from tiny_llm_extensions.arguments import (
    Count,
    OutputFile,
    add_field_arguments,
    add_port_arguments,
    whole_number,
)

from .studies.agreement import CLOCKS, AgreementPlan, compare, study_of
from .studies.catalogue import ALL, STUDIES
from .studies.hardware import HARDWARE
from .studies.served import StudyPlan
from .studies.study import Study, show


@dataclass
class LabOptions:
    """What is simulated, and where figures are written.

    Args:
        hardware: simulated hardware.
        requests: per run.
        seeds: of lengths and arrivals; figures are medians over them.
        block_ms: of a block of 128 tokens: computed, from int8, from memory, from a folder.
        json: also write every figure there.
        save: keep each sealed result as benchmark_results/NAME-STUDY.json.
        compare_engine: compare the simulator with the shipped model instead.
        rounds: with --compare-engine: their median counts.
        clock: with --compare-engine: what a step takes; the processor's time is hardly changed by other processes.
    """

    hardware: Annotated[str, {"choices": list(HARDWARE)}] = "yi-34b"
    requests: Count = 128
    seeds: Annotated[tuple[int, ...], {"type": whole_number(0), "nargs": "+", "metavar": "N"}] = (0, 1, 2)
    block_ms: Annotated[tuple[float, ...], {"type": float, "nargs": 4, "metavar": "MS"}] = StudyPlan.block_ms
    json: OutputFile = None
    save: Annotated[str | None, {"type": result_argument, "metavar": "NAME"}] = None
    compare_engine: bool = False
    rounds: Count = 5
    clock: Annotated[str, {"choices": list(CLOCKS)}] = "processor"


def parse(argv: list[str] | None) -> argparse.Namespace:
    top = argparse.ArgumentParser(prog="pdm run lab", description=__doc__, allow_abbrev=False)
    but = "default: all but scale, conversations and disaggregation"
    top.add_argument("studies", nargs="*", metavar="STUDY", help=f"of {', '.join(STUDIES)}; {but}")
    add_port_arguments(top, solution="ref")
    add_field_arguments(top, LabOptions)
    options = top.parse_args(argv)
    unknown = [name for name in options.studies if name not in STUDIES]
    if unknown:
        top.error(f"no study {unknown[0]!r}: choose from {', '.join(STUDIES)}")
    return options


@command
def main(argv: list[str] | None = None) -> None:
    options, console, results = parse(argv), Console(highlight=False), []
    typed = [word for word in (sys.argv[1:] if argv is None else argv) if word not in options.studies]
    with ends_at_a_blank(needs=Day(3, 3)):
        for name, run in chosen(options, console).items():
            before = provenance("cpu")
            with ends_at(ValueError):  # a study that does not fit the options
                found = run()
            asked = {"requests": options.requests, "seeds": options.seeds, "hardware": options.hardware}
            results.append(found.result(asked, before))
            show(console, results[-1])
            if options.save:
                words = typed if options.compare_engine else [name, *typed]
                keep(console, results[-1], f"{options.save}-{name}", words)
            console.print()
    if options.json:
        write_file(options.json, json.dumps(results, indent=1) + "\n")


def chosen(options: argparse.Namespace, console: Console) -> dict[str, Callable[[], Study]]:
    """The requested studies, by name."""
    if options.compare_engine:
        return {"agreement": partial(compare_engine, options, console)}
    names = resolve_serving(options.solution)
    plan = StudyPlan(names, options.hardware, options.requests, tuple(options.seeds), tuple(options.block_ms))
    return {name: partial(STUDIES[name], plan) for name in options.studies or ALL}


@ends_at(ImportError, ValueError)
def compare_engine(options: argparse.Namespace, console: Console) -> Study:
    """Compare the simulator with the engine."""
    backend = choose_backend(options.solution, options.backend)
    port = Port(SOLUTIONS[options.solution], backend, options.device)
    plan = AgreementPlan(options.solution, port, options.requests, options.rounds, options.clock)
    with console.status("", refresh_per_second=1) as status:
        return study_of(plan, compare(plan, status.update))


if __name__ == "__main__":
    main()
