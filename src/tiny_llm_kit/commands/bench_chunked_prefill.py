"""`pdm run bench-chunked-prefill`: chunks of every size and none: what is won, and what is lost."""

import argparse
import os
from typing import Any

from rich.console import Console

from ..course.address import Day
from ..course.capabilities import choose_backend, ends_at_a_blank, load
from ..lab.bench.chunked_prefill import SweepPlan, measure
from ..lab.bench.kept import keep
from ..lab.bench.reports import show
from ..lab.bench.shapes import SHAPES, RandomCheckpoint, shape
from ..lab.serve import Serving
from ..runtime.arguments import DEVICES, DTYPES, model_argument, whole_number
from ..runtime.port import SOLUTIONS, Port, resolve_serving
from ..terminal import fail


def chunk_argument(text: str) -> int | None:
    """ "none" is the whole prompt."""
    return None if text == "none" else whole_number(1)(text)


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="pdm run bench-chunked-prefill", description=__doc__, allow_abbrev=False
    )
    add = top.add_argument
    add("--solution", default="ref", choices=sorted(SOLUTIONS))
    add("--backend", default="auto", choices=["auto", "mlx", "torch"])
    add("--device", default="auto", choices=DEVICES)
    add("--dtype", default="auto", choices=DTYPES)
    add("--model", type=model_argument, default="tiny-qwen3", help="a shipped name, a folder or a hub id")
    add("--config", choices=sorted(SHAPES), help="in place of --model: a shape, whose weights are random")
    add("--layers", type=whole_number(1), help="with --config: fewer layers than the shape has")
    add("--threads", type=whole_number(1), default=os.cpu_count() or 1)
    add(
        "--steps",
        type=chunk_argument,
        nargs="+",
        default=list(SweepPlan.steps),
        metavar="N",
        help="tokens of a chunk; none computes a prompt whole",
    )
    add(
        "--policy-step",
        type=whole_number(1),
        default=SweepPlan.policy_step,
        metavar="N",
        help="for the policies",
    )
    add("--mixed-tokens", type=whole_number(9), default=SweepPlan.mixed_tokens, metavar="N")
    add("--long-tokens", type=whole_number(9), default=SweepPlan.long_tokens, metavar="N")
    add("--rounds", type=whole_number(1), default=SweepPlan.rounds, help="runs of each, taken in turns")
    add("--save", metavar="NAME", help="keep the sealed result as benchmark_results/NAME.json")
    return top


def load_model(options: argparse.Namespace, backend: str) -> Any:
    """A runner: of a model's files, or of a shape with random weights."""
    where = {"backend": backend, "device": options.device, "dtype": options.dtype}
    if options.config is None:
        runner, _ = load(options.model, solution=options.solution, **where)
        return runner
    port = Port(SOLUTIONS[options.solution], **where)
    checkpoint = RandomCheckpoint(
        shape(options.config, options.layers), port.kit, port.float_dtype, port.device
    )
    model = port.Qwen3ModelWeek2(checkpoint, attention="device")
    return port.runner(model, chunk_mask=port.chunked_attention_mask)


def name_of(options: argparse.Namespace) -> str:
    if options.config is None:
        return options.model
    layers = f", {options.layers} layers" if options.layers else ""
    return f"{options.config}{layers}, random weights"


def run(options: argparse.Namespace, console: Console) -> dict[str, Any]:
    backend = choose_backend(options.solution, options.backend)
    model = load_model(options, backend)
    model.kit.set_threads(options.threads)
    plan = SweepPlan(
        model=name_of(options),
        steps=tuple(options.steps),
        policy_step=options.policy_step,
        mixed_tokens=options.mixed_tokens,
        long_tokens=options.long_tokens,
        rounds=options.rounds,
        threads=options.threads,
        dtype=model.kit.default_dtype(model.device) if options.dtype == "auto" else options.dtype,
    )
    serving = Serving(resolve_serving(options.solution), model)
    # A spinner that turns once a second takes no time from what is measured.
    with console.status("", refresh_per_second=1) as status:
        return measure(plan, serving, backend, model.device, status.update)


def main(argv: list[str] | None = None) -> None:
    options, console = parser().parse_args(argv), Console()
    options.steps = list(dict.fromkeys([*options.steps, None]))  # with none, which all are compared with
    with ends_at_a_blank(needs=Day(2, 7)):
        try:
            result = run(options, console)
        except ValueError as error:
            fail(error)
    show(console, result)
    keep(console, result, options.save, argv)


if __name__ == "__main__":
    main()
