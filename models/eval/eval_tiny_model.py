"""`pdm run eval-tiny-model`: exact answers of a shipped model, on each port and in each dtype."""

from __future__ import annotations

import argparse
import json
from contextlib import nullcontext

from rich.console import Console

from tiny_llm_course.address import Day, parse_day
from tiny_llm_course.capabilities import ends_at_a_blank, needed_day, tested_ports
from tiny_llm_course.doctor import authors_tools
from tiny_llm_engine.machine.installation import installed_backends
from tiny_llm_engine.machine.repo import MODELS
from tiny_llm_engine.machine.terminal import command, fail
from tiny_llm_engine.models.quantization import QUANTIZATIONS
from tiny_llm_engine.models.tokenizer import load_tokenizer
from tiny_llm_engine.solutions.solution import SOLUTIONS
from tiny_llm_extensions.arguments import model_argument, output_argument, whole_number

from .evaluated_models import DTYPES, ORACLE, broken_mask, has_experts, make_logits
from .evaluation_cases import make_suites, read_material
from .evaluation_run import EvaluationRun, evaluate, report, table

# The days whose code is evaluated.
WEEK_1_MODEL, MIXTURES = parse_day("1.5"), parse_day("4.2")
OTHER_CASES = 20  # cases a suite on every run but the first

BREAK_HELP = """run the same cases with a wrong causal mask in the solution, one that hides the first half of the
keys from the second half of the queries, to see how wrong words show it"""


def _plan(options: argparse.Namespace) -> list[tuple[str, str]]:
    """(backend, dtype) of each run; the first run gets all cases."""
    dtypes = list(DTYPES) if options.dtype == "all" else [options.dtype]
    if options.solution == ORACLE:
        return [(ORACLE, dtype) for dtype in dtypes]
    backends = sorted(
        tested_ports(options.backend), reverse=True
    )  # torch first: it is the faster one on a CPU
    return [(backend, dtype) for backend in backends for dtype in dtypes]


def _needs(options: argparse.Namespace) -> Day:
    """The last day whose code the evaluation runs."""
    if has_experts(options.model):
        return MIXTURES
    return needed_day("quantization") if options.quantize else WEEK_1_MODEL


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="pdm run eval-tiny-model", description=__doc__)
    parser.add_argument("--solution", default="ref", choices=[*sorted(SOLUTIONS), ORACLE])
    parser.add_argument("--backend", choices=[*installed_backends(), "all"])
    parser.add_argument("--dtype", default="all", choices=[*DTYPES, "all"])
    parser.add_argument(
        "--cases",
        type=whole_number(1),
        default=200,
        help="look-ups of each kind on the first run; 20 on others",
    )
    parser.add_argument("--model", type=model_argument, default="tiny-qwen3")
    parser.add_argument(
        "--quantize",
        choices=QUANTIZATIONS,
        help="quantise the layers' weights; the Week 2 model then answers",
    )
    parser.add_argument(
        "--activations",
        default="float",
        choices=["int8", "int16", "float"],
        help="with --quantize: rounded, for the kernel of Day 4.1, or as they are",
    )
    parser.add_argument("--break-mask", action="store_true", help=BREAK_HELP)
    parser.add_argument("--json", type=output_argument, help="also write the figures to this file")
    return parser


def run_all(options: argparse.Namespace, console: Console) -> list[EvaluationRun]:
    """Run the whole plan; the first run gets all cases."""
    maker = read_material(MODELS / "train", load_tokenizer(options.model))
    runs = []
    for backend, dtype in _plan(options):
        count = options.cases if not runs else min(options.cases, OTHER_CASES)
        rounded = None if options.activations == "float" else f"{options.activations} activations"
        name = " ".join(filter(None, (backend, dtype, options.quantize, rounded)))
        run = EvaluationRun(name, make_suites(maker, count, every_question=not runs and count > OTHER_CASES))
        with ends_at_a_blank(needs=_needs(options)):
            weights = options.model, options.quantize, options.activations
            logits = make_logits(options.solution, backend, dtype, *weights)
            with broken_mask(options.solution, backend) if options.break_mask else nullcontext():
                evaluate(logits, run, console)
        runs.append(run)
    return runs


@command
def main(argv: list[str] | None = None) -> None:
    parser = _parser()
    options = parser.parse_args(argv)
    for name in ("quantize", "break_mask"):
        if getattr(options, name) and options.solution == ORACLE:
            option = name.replace("_", "-")
            parser.error(f"--{option} needs a solution of this course: choose --solution ref")
    if options.activations != "float" and not options.quantize:
        parser.error(
            f"--activations {options.activations} needs quantised weights: add --quantize 4bit or 8bit"
        )
    if options.solution == ORACLE:
        authors_tools.require("transformers")
    console = Console()
    try:
        runs = run_all(options, console)
    except ValueError as error:  # files that are unusable, or activations that cannot be rounded here
        fail(error)
    console.print(table(runs))
    if options.json:
        options.json.write_text(json.dumps(report(runs), indent=2) + "\n", encoding="utf-8")
    failures = [line for run in runs for line in run.failures()]
    for line in failures:
        console.print(line, highlight=False)
    raise SystemExit(1 if failures else 0)


if __name__ == "__main__":
    main()
