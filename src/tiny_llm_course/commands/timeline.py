"""`pdm run timeline`: the learner's own scheduler serves the same requests twice: whole prompts, then in chunks."""

import argparse
from dataclasses import dataclass
from typing import Annotated

from rich.console import Console

from tiny_llm_engine.machine.terminal import command, ends_at, fail, write_file
from tiny_llm_engine.solutions.solution import resolve_serving
from tiny_llm_engine.solutions.solution_types import ServingPackage
from tiny_llm_extensions.arguments import (
    ModelOptions,
    OutputFile,
    add_field_arguments,
    add_port_arguments,
    whole_number,
)

from ..address import Day
from ..capabilities import choose_backend, ends_at_a_blank, load, unused_days
from ..trace.provenance import provenance, warn_if_busy
from ..trace.serve import NoEnd, Serving, serve
from ..trace.timeline.comparison import Comparison, run_once
from ..trace.timeline.terminal import COLUMNS
from ..trace.trace import WHOLE, Trace
from ..trace.workload import Workload, among_decodes


@dataclass
class TimelineOptions:
    """What is served, and what is written.

    Args:
        prefill_step: tokens of a chunk, and what is agreed: more between two decode steps is a stall.
        prompt_tokens: of the long prompt.
        decodes: requests that run when it arrives.
        html: also write a page with both runs, and a slider for the chunk size.
        trace: also write both runs for ui.perfetto.dev or chrome://tracing.
        simulate: no model: virtual time, the same in every run.
    """

    prefill_step: Annotated[int, {"type": whole_number(1, WHOLE - 1), "metavar": "N"}] = 128
    prompt_tokens: Annotated[int, {"type": whole_number(1, WHOLE), "metavar": "N"}] = 2048
    decodes: Annotated[int, {"type": whole_number(1, 16), "metavar": "N"}] = 4
    html: OutputFile = None
    trace: OutputFile = None
    simulate: bool = False


def parse(argv: list[str] | None) -> argparse.Namespace:
    """Parse the options and resolve `auto`."""
    parser = argparse.ArgumentParser(prog="pdm run timeline", description=__doc__)
    add_port_arguments(parser, solution="tiny_llm")
    add_field_arguments(parser, ModelOptions, ["dtype", "quantize"])
    add_field_arguments(parser, TimelineOptions)
    options = parser.parse_args(argv)
    if options.html and options.trace and options.html.resolve() == options.trace.resolve():
        parser.error(f"--html and --trace name the same file, {options.html}: give each its own")
    options.backend = choose_backend(options.solution, options.backend)
    return options


def make_console() -> Console:
    """A console as wide as the terminal, or of full width and plain for a file or a pipe."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=COLUMNS)


def compare(options: argparse.Namespace) -> Comparison:
    workload = among_decodes(options.prompt_tokens, options.decodes, options.prefill_step)
    names = resolve_serving(options.solution)
    return Comparison.of(workload, names, *([] if options.simulate else [measured(options, workload, names)]))


def measured(options: argparse.Namespace, workload: Workload, names: ServingPackage):
    """A function that runs the workload on the model, which has been warmed up."""
    with ends_at(ValueError):  # no such device here, files that are unusable
        where = {name: getattr(options, name) for name in ("solution", "backend", "device")}
        model, _ = load(options.model, **where)
    if workload.max_seq_len > model.max_model_len:
        fail(
            f"--prompt-tokens {options.prompt_tokens}: prompt and answer need {workload.max_seq_len} tokens, and "
            f"{options.model} reads {model.max_model_len}: choose fewer, or --simulate"
        )
    serving = Serving(names, model)
    # Warm-up: one-time costs, such as the start of threads, are not part of the comparison.
    serve(serving, among_decodes(min(options.prompt_tokens, 256), options.decodes), 128)
    source = {"model": options.model, "solution": options.solution, "port": options.backend}
    source |= provenance(model.device)

    def run(workload: Workload, names: ServingPackage, chunk: int) -> Trace:
        return run_once(serving, workload, chunk, source)

    return run


@command
def main(argv: list[str] | None = None) -> None:
    options = parse(argv)
    with ends_at_a_blank(needs=Day(2, 7), unused=unused_days()):
        try:
            if not options.simulate:
                warn_if_busy()
            comparison = compare(options)
            comparison.show(make_console())
            if options.trace:
                write_file(options.trace, comparison.chrome_trace())
            if options.html:
                write_file(options.html, comparison.html())
        except NoEnd as problem:
            fail(f"timeline: {problem}")


if __name__ == "__main__":
    main()
