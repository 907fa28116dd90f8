"""`pdm run bench-throughput`: requests and tokens per second of a workload, compared with peers on the same weights."""

import argparse
import json
from typing import Any

from rich.console import Console

from tiny_llm_kit.course.address import Day
from tiny_llm_kit.course.capabilities import choose_backend, ends_at_a_blank, network_options
from tiny_llm_kit.engine.arguments import output_argument
from tiny_llm_kit.engine.port import SOLUTIONS, Port
from tiny_llm_kit.terminal import command, fail, write_file

from .options import bench_parser, plan_of
from .reports import show_and_keep
from .throughput import ThroughputPlan, measure


def run(options: argparse.Namespace, console: Console) -> dict[str, Any]:
    backend = choose_backend(options.solution, options.backend)
    port = Port(SOLUTIONS[options.solution], backend, options.device, options.dtype)
    loading = network_options(options.solution, backend)
    # Refreshed once a second, so that the spinner takes no time from the measurement.
    with console.status("", refresh_per_second=1) as status:
        return measure(plan_of(ThroughputPlan, options), port, loading, status.update)


@command
def main(argv: list[str] | None = None) -> None:
    top = bench_parser("throughput", __doc__, ThroughputPlan, ("auto",))
    top.add_argument("--json", type=output_argument, metavar="FILE", help="also write every figure there")
    options, console = top.parse_args(argv), Console()
    if options.trust_remote_code:
        console.print("--trust-remote-code: accepted, and no remote code is ever run")
    with ends_at_a_blank(needs=Day(3, 3)):
        try:
            result = run(options, console)
        except (ImportError, ValueError) as error:
            fail(error)
    show_and_keep(console, result, options, argv)
    if options.json:
        write_file(options.json, json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
