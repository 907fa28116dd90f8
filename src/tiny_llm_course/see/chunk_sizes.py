"""Chunk sizes, for the screens of Day 2.7: what each costs on the shipped model, and what two policies choose."""

import math
from itertools import groupby

from rich.console import Console

from tiny_llm_engine.solutions.port import Port
from tiny_llm_engine.solutions.solution_types import ServingPackage

from ..trace.chunk_sweep import WITHOUT_A_FUSED_KERNEL, median, percent, shown, sweep
from ..trace.serve import Serving
from ..trace.simulation.cost_fit import measured_cost
from ..trace.workload import LONG, RUNNING, SHORT, RequestSpec, Workload, decode_heavy
from .shared import MODEL, shipped, simulated
from .stalls_drawn import STEPS

MEASURED = (r"(mlx|torch) on \w+", r" *[\d,.]+ ms", r" *[−+±][\d,]+ %")
# Three running requests, a long prompt, and a short one right after it.
WORKLOAD = Workload(
    "measured",
    "3 requests decode; a prompt of 1,024 tokens arrives, and one of 8 after it",
    (
        *(RequestSpec(RUNNING, 16, 48),) * 3,
        RequestSpec(LONG, 1024, 4, arrives=8),
        RequestSpec(SHORT, 8, 4, arrives=8),
    ),
    5,
)
ROUNDS = 2
FIGURES = ("ttft_long", "ttft_short", "tbt_p99", "longest_gap", "total")
# States for the rule of thumb: prompt tokens, decoding slots, all slots.
PROMPTS, RUNNING_SLOTS, SLOTS = (1000, 4000), (0, 4, 5), 5
TARGET, LONG_PROMPT = 0.05, 3072  # seconds of a chunk, tokens


def show_measured(b: Port, names: ServingPackage, console: Console) -> None:
    """Show each chunk size on the shipped model, compared with whole prompts."""
    checkpoint = shipped(b)
    model = b.Qwen3ModelWeek2(checkpoint, attention="device")
    runner = b.runner(model, chunk_mask=b.chunked_attention_mask)
    runs = sweep(Serving(names, runner), WORKLOAD, STEPS, ROUNDS, lambda text: None)["runs"]
    console.print(f"{MODEL}, {b.name} on {b.device}, medians of {ROUNDS} runs:")
    console.print(f"{WORKLOAD.says}\n")
    heads = ("TTFT long", "TTFT short", "TBT p99", "longest gap", "total")
    console.print("chunk " + "".join(f"{head:>14}" for head in heads), style="bold")
    whole = {figure: median(runs["none"], figure) or math.nan for figure in FIGURES}
    for step in STEPS:
        cut = {figure: median(runs[shown(step)], figure) or math.nan for figure in FIGURES}
        console.print(f"{shown(step):<6}" + "".join(f"{1000 * cut[f]:>11,.1f} ms" for f in FIGURES))
        if step is not None:
            changes = "".join(f"{percent(cut[f] / whole[f] - 1):>14}" for f in FIGURES)
            console.print(f"{'':<6}{changes}", style="dim")
    console.print(WITHOUT_A_FUSED_KERNEL)


def show_choices(names: ServingPackage, console: Console) -> None:
    """Show the rule of thumb for a few states, and the adaptive chunker's sizes for a long prompt."""
    running = "".join(f"{n:>6} run" for n in RUNNING_SLOTS)
    console.print(f"rule of thumb, {SLOTS} slots{running}", style="bold")
    for tokens in PROMPTS:
        sizes = [names.select_optimal_chunk_size(tokens, 10**6, n, SLOTS) for n in RUNNING_SLOTS]
        console.print(f"prompt of {tokens:,} tokens  " + "".join(f"{size:>10}" for size in sizes))
    long = decode_heavy(LONG_PROMPT)
    console.print(f"\nadaptive, at most {TARGET} s per chunk, measured step times:", style="bold")
    console.print(f"{long.says}; its chunks:")
    console.print("  ".join(_runs(_chosen(names, long))))


def _chosen(names: ServingPackage, workload: Workload) -> list[int]:
    """Tokens of each chunk of the long prompt, in virtual time."""
    trace = simulated(names, measured_cost(), workload, chunker=names.AdaptiveChunker(TARGET))
    return [span.tokens for span in trace.of(trace.lanes[-1]) if span.kind == "chunk"]


def _runs(sizes: list[int]) -> list[str]:
    """Runs of equal sizes as text: "128 × 3" for three chunks of 128."""
    counted = [(size, len(list(same))) for size, same in groupby(sizes)]
    return [str(size) if count == 1 else f"{size} × {count}" for size, count in counted]
