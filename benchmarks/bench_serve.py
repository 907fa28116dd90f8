"""`pdm run bench-serve`: latencies of a load that arrives over time, at our server or any OpenAI-compatible one."""

import argparse
import json
import os

from rich.console import Console

from tiny_llm_kit.course.capabilities import choose_backend
from tiny_llm_kit.engine.arguments import output_argument
from tiny_llm_kit.engine.port import SOLUTIONS, Port
from tiny_llm_kit.terminal import command, fail, write_file

from .options import bench_parser, plan_of
from .reports import show_and_keep
from .serving.measure import ServingPlan, measure
from .serving.processes import Place


def parser() -> argparse.ArgumentParser:
    top = bench_parser("serve", __doc__, ServingPlan, ("auto",))
    top.add_argument("--json", type=output_argument, metavar="FILE", help="also write every figure there")
    return top


def place_of(plan: ServingPlan, options: argparse.Namespace) -> Place:
    """The description of the measured server; its device is unknown if it was already running."""
    if plan.base_url:
        return Place(options.solution, "an OpenAI-compatible server", "the server's")
    backend = choose_backend(options.solution, options.backend)
    device = Port(SOLUTIONS[options.solution], backend, options.device, "auto").device
    return Place(options.solution, backend, device)


@command
def main(argv: list[str] | None = None) -> None:
    options, console = parser().parse_args(argv), Console()
    try:
        plan = plan_of(ServingPlan, options, api_key=options.api_key or os.environ.get("OPENAI_API_KEY"))
        # Refreshed once a second, so that the spinner takes no time from the measurement.
        with console.status("starting", refresh_per_second=1) as status:
            result = measure(plan, place_of(plan, options), status.update)
    except (ImportError, ValueError) as error:
        fail(error)
    show_and_keep(console, result, options, argv)
    if options.json:
        write_file(options.json, json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
