"""`pdm run bench-chunked-prefill`: chunks of every size and none: what each size wins and costs.

With `--hybrid` Week 3's engine serves the same requests beside Week 2's.
"""

import argparse
from typing import Any

from rich.console import Console

from tiny_llm_kit.course.address import Day
from tiny_llm_kit.course.capabilities import choose_backend, ends_at_a_blank, load, network_options
from tiny_llm_kit.engine.arguments import whole_number
from tiny_llm_kit.engine.engine_options import EngineOptions
from tiny_llm_kit.engine.llm_engine import LLMEngine
from tiny_llm_kit.engine.loading import load_network
from tiny_llm_kit.engine.port import SOLUTIONS, Port, resolve_serving
from tiny_llm_kit.terminal import command, fail
from tiny_llm_kit.trace.serve import EndlessTokenizer, NoEnd, Serving
from tiny_llm_kit.trace.shapes import SHAPES, random_network, random_runner
from tiny_llm_kit.trace.workload import Workload

from .chunked_prefill import EngineOf, SweepPlan, measure, number_of_runs
from .options import bench_parser, plan_of
from .progress import Progress
from .reports import show_and_keep


def parser() -> argparse.ArgumentParser:
    top = bench_parser("chunked-prefill", __doc__, SweepPlan, ("auto",))
    says = "instead of --model: a shape with random weights"
    top.add_argument("--config", choices=sorted(SHAPES), help=says)
    top.add_argument("--layers", type=whole_number(1), help="with --config: fewer layers than the shape has")
    return top


def load_model(options: argparse.Namespace, backend: str) -> tuple[Any, str]:
    """A runner, of a model's files or of a shape with random weights; and its name."""
    where = {"backend": backend, "device": options.device, "dtype": options.dtype}
    if options.config is None:
        runner, _ = load(options.model, solution=options.solution, **where)
        return runner, options.model
    layers = f", {options.layers} layers" if options.layers else ""
    port = Port(SOLUTIONS[options.solution], **where)
    return random_runner(port, options.config, options.layers), f"{options.config}{layers}, random weights"


def engine_maker(options: argparse.Namespace, backend: str) -> EngineOf:
    """Week 3's engine on the same model, or on random weights of the same shape."""
    port = Port(SOLUTIONS[options.solution], backend, options.device, options.dtype)
    if options.config is None:
        loading = network_options(options.solution, backend)
        network, _ = load_network(port, options.model, "week3", **loading)
    else:
        network, _ = random_network(port, options.model, options.config, options.layers, None)

    def engine_of(budget: int, workload: Workload) -> LLMEngine:
        places = {"max_num_seqs": workload.batch_size, "max_model_len": workload.max_seq_len}
        chosen = EngineOptions(max_num_batched_tokens=budget, **places, enforce_eager=True)
        return LLMEngine(port, network, EndlessTokenizer(), chosen)

    return engine_of


def run(options: argparse.Namespace, console: Console) -> dict[str, Any]:
    backend = choose_backend(options.solution, options.backend)
    model, name = load_model(options, backend)
    model.backend_module.set_threads(options.threads)
    dtype = model.backend_module.default_dtype(model.device) if options.dtype == "auto" else options.dtype
    steps = dict.fromkeys([*options.steps, None])  # with none, which all are compared with
    plan = plan_of(SweepPlan, options, model=name, dtype=dtype, steps=list(steps))
    serving = Serving(resolve_serving(options.solution), model)
    engine_of = engine_maker(options, backend) if plan.hybrid else None
    with Progress(console, number_of_runs(plan)) as progress:
        return measure(plan, serving, backend, model.device, progress, engine_of)


@command
def main(argv: list[str] | None = None) -> None:
    options, console = parser().parse_args(argv), Console()
    with ends_at_a_blank(needs=Day(3, 3) if options.hybrid else Day(2, 7)):
        try:
            result = run(options, console)
        except (ValueError, NoEnd) as error:
            fail(error)
    show_and_keep(console, result, options, argv)


if __name__ == "__main__":
    main()
