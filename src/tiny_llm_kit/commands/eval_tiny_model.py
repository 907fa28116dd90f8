"""`pdm run eval-tiny-model`: how many answers of the shipped model are exact, on each port and in each type."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import patch

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from ..course.address import parse_day
from ..course.capabilities import ends_at_a_blank, needed_day, ports_of
from ..lab.evaluation import Logits, exact_answers, generates_exactly, misses_allowed
from ..lab.evaluation_cases import Conversation, Suite, make_suites, read_material
from ..model.files import CheckpointError
from ..model.hub import model_folder
from ..model.quantization import QUANTIZATIONS, WeightQuantizer
from ..model.tokenizer import load_tokenizer
from ..repo import MODELS
from ..runtime.arguments import model_argument, whole_number
from ..runtime.loading import load_checkpoint
from ..runtime.port import SOLUTIONS, Port, installed_backends
from ..terminal import fail

DTYPES = {"fp32": "float32", "bf16": "bfloat16"}
ORACLE = "transformers"
WEEK_1_MODEL = parse_day("1.5")  # the day whose code is evaluated
OTHER_CASES = 20  # cases a suite on every run but the first
GENERATED = 20  # cases that are also decoded step by step

BREAK_HELP = """run the same cases with a wrong causal mask in the solution, one that hides the first half of the
keys from the second half of the queries, to see how wrong words show it"""


@dataclass
class Run:
    """One column of the table: a port and a type, the suites it was given and the number of exact answers in each."""

    name: str
    suites: list[Suite]
    exact: list[int] = field(default_factory=list)
    generated_alike: bool = True

    def failures(self) -> list[str]:
        """One line for each target that was missed."""
        lines = [
            f"{self.name}: {suite.name}: {exact} of {suite.size} exact, the target is {suite.target:.0%}"
            for suite, exact in zip(self.suites, self.exact, strict=True)
            if suite.target is not None and suite.size - exact > misses_allowed(suite)
        ]
        if not self.generated_alike:
            lines.append(f"{self.name}: decoding step by step disagrees with one forward pass")
        return lines


def solution_logits(solution: str, backend: str, dtype: str, model: str) -> Logits:
    """The Week 1 model of a solution as a function from ids (B, L) to logits (B, L, V) in NumPy."""
    port = Port(solution, backend, dtype=DTYPES[dtype])
    checkpoint = load_checkpoint(model, backend=backend, device=port.device, dtype=port.float_dtype)
    network = port.Qwen3ModelWeek1(checkpoint)
    return lambda ids: port.numpy(network(port.array(ids)))


def quantized_logits(solution: str, backend: str, dtype: str, model: str, bits: int) -> Logits:
    """The same function from the Week 2 model, whose layers' weights are quantised at load."""
    port = Port(solution, backend, dtype=DTYPES[dtype])
    quantizer = WeightQuantizer(port, bits)
    checkpoint = load_checkpoint(model, backend, port.device, port.float_dtype, quantizer)
    network = port.Qwen3ModelWeek2(checkpoint)

    def logits(ids: list[list[int]]) -> np.ndarray:
        return port.numpy(network(port.array(ids), 0, network.create_kv_cache(len(ids[0]))))

    return logits


def oracle_logits(dtype: str, model: str) -> Logits:
    """The same function from Hugging Face transformers."""
    from transformers import AutoModelForCausalLM

    from ..runtime import backend_torch

    network = AutoModelForCausalLM.from_pretrained(
        model_folder(model), dtype=backend_torch.DTYPES[DTYPES[dtype]]
    )
    network.eval().requires_grad_(False)
    return lambda ids: backend_torch.to_numpy(network(backend_torch.to_array(ids), use_cache=False).logits)


@contextmanager
def broken_mask(package: str) -> Iterator[None]:
    """Replaces `causal_mask` in every module of a solution's port by one that forgets the first half of the text."""
    modules = [module for name, module in sys.modules.items() if name.startswith(package)]
    modules = [module for module in modules if hasattr(module, "causal_mask")]
    right = modules[0].causal_mask

    def wrong(L: int, S: int, *args, **kwargs):
        mask = right(L, S, *args, **kwargs)
        mask[L // 2 :, : S // 2] = -float("inf")
        return mask

    with ExitStack() as patches:
        for module in modules:
            patches.enter_context(patch.object(module, "causal_mask", wrong))
        yield


def evaluate(logits: Logits, run: Run, console: Console) -> None:
    """Fill in `run.exact` and `run.generated_alike`, with a progress bar."""
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task(run.name, total=sum(suite.size for suite in run.suites) + GENERATED)
        verdicts = []
        for suite in run.suites:
            progress.update(bar, description=f"{run.name}: {suite.name}")
            verdicts.append(exact_answers(logits, suite.cases, lambda done: progress.advance(bar, done)))
        run.exact = [sum(verdict) for verdict in verdicts]
        progress.update(bar, description=f"{run.name}: step by step")
        sample = _sample(run.suites, verdicts)
        for case, verdict in sample:
            run.generated_alike &= generates_exactly(logits, case) == verdict
            progress.advance(bar)


def _sample(suites: list[Suite], verdicts: list[list[bool]]) -> list[tuple[Conversation, bool]]:
    """Half questions and half short look-ups, each with its verdict."""
    half = GENERATED // 2
    sample = []
    for suite, exact in zip(suites, verdicts, strict=True):
        if suite.name in ("questions as in training", "look-ups, 20 lines"):
            pairs = list(zip(suite.cases, exact, strict=True))
            sample += pairs[:: max(1, len(pairs) // half)][:half]
    return sample


def table(runs: list[Run]) -> Table:
    """Rows are suites, columns are runs, cells the share of exact answers."""
    result = Table(title="Exact answers, greedy")
    result.add_column("asked")
    result.add_column("target", justify="right")
    for run in runs:
        result.add_column(run.name, justify="right")
    for row, suite in enumerate(runs[0].suites):
        target = "" if suite.target is None else f"{suite.target:.0%}"
        result.add_row(suite.name, target, *(f"{run.exact[row]}/{run.suites[row].size}" for run in runs))
    return result


def report(runs: list[Run]) -> dict:
    """What the table shows, for a file."""
    return {
        run.name: {
            suite.name: {"exact": exact, "cases": suite.size, "target": suite.target}
            for suite, exact in zip(run.suites, run.exact, strict=True)
        }
        for run in runs
    }


def _plan(options: argparse.Namespace) -> list[tuple[str, str]]:
    """(backend, dtype) of each run; the first one is given all cases."""
    dtypes = list(DTYPES) if options.dtype == "all" else [options.dtype]
    if options.solution == ORACLE:
        return [(ORACLE, dtype) for dtype in dtypes]
    backends = sorted(ports_of(options.backend), reverse=True)  # torch first: it is the faster one on a CPU
    return [(backend, dtype) for backend in backends for dtype in dtypes]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="pdm run eval-tiny-model", description=__doc__)
    parser.add_argument("--solution", default="ref", choices=[*sorted(SOLUTIONS), ORACLE])
    parser.add_argument("--backend", default="all", choices=[*installed_backends(), "all"])
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
    parser.add_argument("--break-mask", action="store_true", help=BREAK_HELP)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    return parser


def _make_logits(options: argparse.Namespace, backend: str, dtype: str) -> Logits:
    if backend == ORACLE:
        return oracle_logits(dtype, options.model)
    if options.quantize:
        bits = QUANTIZATIONS[options.quantize]
        return quantized_logits(options.solution, backend, dtype, options.model, bits)
    return solution_logits(options.solution, backend, dtype, options.model)


def _context(options: argparse.Namespace, backend: str) -> AbstractContextManager:
    if not options.break_mask:
        return nullcontext()
    if backend == ORACLE:
        raise SystemExit("--break-mask needs a solution of this course: choose --solution ref")
    return broken_mask(f"{SOLUTIONS[options.solution]}.{backend}_backend")


def run_all(options: argparse.Namespace, console: Console) -> list[Run]:
    """Every run of the plan; the first one is given all cases."""
    maker = read_material(MODELS / "train", load_tokenizer(options.model))
    runs = []
    for backend, dtype in _plan(options):
        count = options.cases if not runs else min(options.cases, OTHER_CASES)
        name = " ".join(filter(None, (backend, dtype, options.quantize)))
        run = Run(name, make_suites(maker, count, every_question=not runs and count > OTHER_CASES))
        with ends_at_a_blank(needs=needed_day("quantization") if options.quantize else WEEK_1_MODEL):
            logits = _make_logits(options, backend, dtype)
            with _context(options, backend):
                evaluate(logits, run, console)
        runs.append(run)
    return runs


def main(argv: list[str] | None = None) -> None:
    parser = _parser()
    options = parser.parse_args(argv)
    if options.json and (options.json.is_dir() or not options.json.parent.is_dir()):
        parser.error(f"--json {options.json}: name a file in a folder that exists")
    if options.quantize and options.solution == ORACLE:
        parser.error("--quantize needs a solution of this course: choose --solution ref")
    console = Console()
    try:
        runs = run_all(options, console)
    except CheckpointError as error:
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
