"""What the two benchmark commands share: their options, the table, and the file that is kept."""

import argparse
import os
import sys
from collections.abc import Callable

from rich.console import Console
from rich.progress import track

from ...model.quantization import QUANTIZATIONS
from ...repo import PORTS
from ...runtime.arguments import DEVICES, whole_number
from ...runtime.port import SOLUTIONS, Port, installed_backends
from ...terminal import fail
from .contest import ContestPlan
from .kept import keep
from .report import show
from .shapes import SHAPES


def parser(kind: str, description: str) -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog=f"pdm run bench-{kind}", description=description, allow_abbrev=False)
    add = top.add_argument
    add("--solution", default="ref", choices=sorted(SOLUTIONS))
    add("--backend", default=installed_backends()[-1], choices=PORTS)
    add("--device", default="auto", choices=DEVICES)
    add("--config", default="qwen3-0.6b", choices=sorted(SHAPES), help="a shape; its weights are random")
    add("--layers", type=whole_number(1), help="fewer layers than the shape has, for slow machines")
    add("--dtype", default="bfloat16", choices=["float32", "bfloat16", "float16"])
    add("--attention", default="device", help="of our model: simple, tiled or device")
    add("--quantize", choices=sorted(QUANTIZATIONS), help="adds our engine with quantised weights")
    add("--compare", choices=["transformers", "mlx-lm"], help="a peer on the same weights")
    if kind == "decode":
        add("--rows", type=whole_number(1), nargs="+", default=[1, 4, 16], help="rows of the batch")
        add("--steps", type=whole_number(1), default=4, help="tokens of one sample")
    add(
        "--context",
        type=whole_number(1),
        nargs="+",
        default=[128, 1024],
        help="tokens before, or of the prompt",
    )
    both = sorted({1, os.cpu_count() or 1})
    add(
        "--threads", type=whole_number(1), nargs="+", default=both, help="each is measured; the best is shown"
    )
    add("--rounds", type=whole_number(1), default=7, help="samples of each contestant, taken in turns")
    add("--save", metavar="NAME", help="keep the sealed result as benchmark_results/NAME.json")
    return top


def bench_main(kind: str, description: str, measure: Callable, argv: list[str] | None) -> None:
    typed = sys.argv[1:] if argv is None else argv
    options = parser(kind, description).parse_args(typed)
    console = Console()
    try:
        port = Port(SOLUTIONS[options.solution], options.backend, options.device, options.dtype)
        plan = ContestPlan(
            config=options.config,
            layers=options.layers,
            dtype=options.dtype,
            attention=options.attention,
            quantize=options.quantize,
            compare=options.compare,
            threads=tuple(options.threads),
            rounds=options.rounds,
            steps=getattr(options, "steps", 1),
        )
        result = measure(plan, port, o=options, progress=lambda cases: track(cases, kind, console=console))
    except (ImportError, ValueError) as error:
        fail(error)
    show(console, result)
    keep(console, result, options.save, typed)
