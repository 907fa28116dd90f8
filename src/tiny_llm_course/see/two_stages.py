"""The second half of Day 3.7's screen: two stages serve a load in three ways, and their chart."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from itertools import cycle
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from tiny_llm_engine.models.files import Json
from tiny_llm_engine.solutions.port import Port
from tiny_llm_engine.solutions.solution_types import AnswerSequence, Event
from tiny_llm_extensions.llm import LLM
from tiny_llm_extensions.make_loop import make_loop
from tiny_llm_extensions.parallel.timed_group import take_spans

from ..trace.pipeline.gantt import legend, show_gantt
from ..trace.pipeline.pipeline_run import KINDS, PipelineRun
from ..trace.pipeline.simulated_pipeline import predicted
from ..trace.serve import endless_sequence
from ..trace.simulation.cost_fit import fit_steps
from ..trace.simulation.step_cost import StepWork
from ..trace.tables import figures_table
from .own_process import in_own_process
from .shared import MODEL, run_all

# Tokens of the prompts, in the order of their arrival, all at once; of each answer; and the blocks.
PROMPTS, ANSWER = (300, 40, 160, 24, 420, 90, 260, 60, 350, 30, 120, 200), 24
NUM_BLOCKS, BLOCK, LONGEST = 64, 64, 1024
SIZES = (16, 64, 256)
ROUNDS = 3  # the first warms up, the last is shown, and the others are what costs are fitted to


class UnequalChunks:
    """A chunker of Day 2.7 that takes any size: small, medium, large, and again."""

    sizes = SIZES

    def __init__(self):
        self._next = cycle(SIZES)

    def select_chunk_size(self, base_chunk_size: int, decode_pressure: float) -> int:
        return next(self._next)

    def observe(self, chunk_size: int, seconds: float) -> None:
        """Do nothing: this chunker does not learn."""


# The ways to fill micro-batches: options of `make_loop`; each run has a chunker of its own.
WAYS: dict[str, Callable[[], dict[str, Any]]] = {
    "whole prompts": lambda: {"enable_chunked_prefill": False, "max_num_batched_tokens": LONGEST},
    "unequal chunks": lambda: {"max_num_batched_tokens": 272, "chunker": UnequalChunks()},
    "uniform chunks": lambda: {"max_num_batched_tokens": 64},
}


def measure_runs(b: Port) -> dict[str, list[Json]]:
    """All runs of each way, of JSON's types."""
    pool = {"num_blocks": NUM_BLOCKS, "block_size": BLOCK, "max_model_len": LONGEST}
    stages = {"pipeline_parallel_size": 2, "enforce_eager": True}
    with LLM(MODEL, backend=b.name, device=b.device, **pool, **stages) as llm:
        return {way: [served(b, llm, options()) for _ in range(ROUNDS)] for way, options in WAYS.items()}


def served(b: Port, llm: LLM, options: dict[str, Any]) -> Json:
    """Serve the load once; returns what each micro-batch computed, and when each stage did."""
    s, engine, works = b.serving, llm.engine, list[Json]()

    def hear(event: Event) -> None:
        if event.kind == "step":
            works.append(asdict(StepWork.of_parts(event.parts)))

    take_spans(engine.extensions["ranks"])  # those of the run before
    allocator = s.BlockAllocator(NUM_BLOCKS, BLOCK, enable_prefix_caching=False)
    loop = make_loop(s, "hybrid", engine.runner, allocator, max_num_seqs=16, on_event=hear, **options)
    run_all(loop, sequences(b))
    return {"works": works, "seconds": take_spans(engine.extensions["ranks"])}


def run_of(works: list[dict[str, int]], seconds: list[list[tuple[float, float]]]) -> PipelineRun:
    """A run that `served` has returned."""
    return PipelineRun.of_seconds([StepWork(**work) for work in works], seconds)


def show_stages(b: Port, console: Console) -> None:
    """Serve the load in three ways, measured and predicted, with a chart of each."""
    measured = in_own_process(measure_runs, b)
    runs_of = {name: [run_of(**run) for run in runs] for name, runs in measured.items()}
    longest = f"prompts of {min(PROMPTS)} to {max(PROMPTS)} tokens, answers of {ANSWER}"
    console.print(f"\n{len(PROMPTS)} requests at once, {longest}\n")
    console.print(table_of(runs_of))
    for name, runs in runs_of.items():
        console.print(f"\n{name}\n", style="bold")
        show_gantt(console, runs[-1], min(run[-1].end for run in runs_of.values()) / 2)
    console.print()
    legend(console)


def table_of(runs_of: Mapping[str, list[PipelineRun]]) -> Table:
    """The last run of each way: its bubbles, and those that the runs between the first and the last predict."""
    fitted = [run for runs in runs_of.values() for run in runs[1:-1]]
    cost = fit_steps([sample for run in fitted for sample in run.samples])
    transfer = median(seconds for run in fitted for seconds in run.transfers)
    shown = figures_table("two stages", "micro-batches", "seconds", "bubbles", *KINDS, "predicted")
    for name, runs in runs_of.items():
        run = runs[-1]
        kinds, time = run.seconds_by_kind(), len(run.stages) * run.end
        shares = run.bubble_share, *(kinds[kind] / time for kind in KINDS)
        shares = *shares, predicted(run, cost, transfer).bubble_share
        percents = (f"{100 * share:3.0f} %" for share in shares)
        shown.add_row(name, str(len(run.works)), f"{run.end:.2f}", *percents)
    return shown


def sequences(b: Port) -> Iterator[AnswerSequence]:
    """The requests of the load, with tokens that no two of them share."""
    for number, size in enumerate(PROMPTS):
        ids = [(37 * number + place) % 3000 for place in range(size)]
        yield endless_sequence(b.serving, ids, ANSWER, LONGEST, number)
