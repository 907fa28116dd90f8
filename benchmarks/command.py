"""`pdm run bench-decode` and `pdm run bench-prefill`."""

from functools import partial

from rich.console import Console
from rich.progress import track

from tiny_llm_kit.engine.port import SOLUTIONS, Port, installed_backends
from tiny_llm_kit.terminal import fail

from .contest import ContestPlan, measure_decode, measure_prefill
from .options import COUNT, COUNTS, bench_parser, plan_of
from .reports import show_and_keep


def contest(kind: str, description: str, argv: list[str] | None) -> None:
    """`pdm run bench-decode` or `pdm run bench-prefill`."""
    top = bench_parser(kind, description, ContestPlan, (installed_backends()[-1],))
    if kind == "decode":
        top.add_argument("--rows", **COUNTS, default=[1, 4, 16], help="rows of the batch")
        top.add_argument("--steps", **COUNT, default=4, help="tokens of one sample")
    top.add_argument("--context", **COUNTS, default=[128, 1024], help="tokens before, or of the prompt")
    options, console = top.parse_args(argv), Console()
    try:
        port = Port(SOLUTIONS[options.solution], options.backend, options.device, options.dtype)
        plan, progress = plan_of(ContestPlan, options), partial(track, description=kind, console=console)
        if kind == "decode":
            result = measure_decode(plan, port, options.rows, options.context, progress)
        else:
            result = measure_prefill(plan, port, options.context, progress)
    except (ImportError, ValueError) as error:
        fail(error)
    show_and_keep(console, result, options, argv)
