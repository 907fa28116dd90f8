"""`pdm run bench-throughput --preset speed` and `--preset drafts`: a real model beside llama.cpp, case by case.

`speed` has random prompts and answers of fixed lengths, `drafts` real text in four kinds of tasks, whose answers end
where the model ends them. Of one request that decodes, `speed` also says where the time of a step goes.
"""

import cProfile
import pstats
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from tiny_llm_kit.engine.llm import LLM
from tiny_llm_kit.engine.port import Port
from tiny_llm_kit.trace.tables import figures_table
from tiny_llm_kit.trace.workload import prompt_of

from .baselines import BASELINES, file_of, is_installed
from .options import plain
from .real_text import KINDS
from .report import OURS, fastest_baseline, print_header, rounds_and_threads
from .throughput_report import drafts, per_second

if TYPE_CHECKING:
    from .throughput import ThroughputPlan

ROWS = (1, 4, 16)
SPEED = {
    **{f"{rows} × 32 + 64": {"num_prompts": rows, "input_len": 32, "output_len": 64} for rows in ROWS},
    **{f"prompt {size:,}": {"num_prompts": 1, "input_len": size, "output_len": 1} for size in (128, 1024)},
}
DRAFTS = {f"{kind}, {rows}": {"dataset": kind, "num_prompts": rows} for kind in KINDS for rows in ROWS}
PEERS = ("xllamacpp", "llama.cpp", "transformers")  # of the preset `speed`: those that are installed
PRESETS: dict[str, tuple[dict[str, dict[str, Any]], dict[str, Any]]] = {  # cases, and defaults of the options
    "speed": (SPEED, {"model": "smollm2", "compare": tuple(filter(is_installed, PEERS))}),
    "drafts": (
        DRAFTS,
        {
            "model": "smollm2",
            "output_len": 128,
            "speculative_config": {"method": "ngram"},
            "compare": ("undrafted", "xllamacpp", "xllamacpp-drafts"),
        },
    ),
}
STEPS, LINES = 64, 8  # steps of the profile, and functions that it shows


def measure(
    preset: str, plan: "ThroughputPlan", measure_one: Callable[["ThroughputPlan"], dict[str, Any]]
) -> dict[str, Any]:
    """Measure each case of a preset with engines of its own: the results of `measure_one`, by case."""
    cases = {
        name: measure_one(replace(plan, **case, max_num_seqs=case["num_prompts"]))
        for name, case in PRESETS[preset][0].items()
    }
    first = next(iter(cases.values()))
    shared = {name: first[name] for name in ("backend", "provenance", "notes")}
    found = plain(plan) | {"dtype": first["plan"]["dtype"]}
    if preset == "speed":
        missing = [each for each in PEERS if not is_installed(each)]
        shared["notes"] = shared["notes"] + [
            f"{each}: not installed; {BASELINES[each].installing}" for each in missing
        ]
    return {**shared, "kind": "real-model", "preset": preset, "plan": found, "cases": cases}


def limits(model: str, port: Port) -> dict[str, float]:
    """The bytes of a model's file, which a step reads at least, and what memory delivers per second."""
    speed = port.backend_module.read_bandwidth(port.device)
    return {"file_bytes": file_of(model).stat().st_size, "bytes_per_second": speed}


def profile(llm: LLM) -> list[dict[str, Any]]:
    """The functions in which one request spends its steps: own milliseconds per step, longest first, and calls."""
    params = llm.engine.names.SamplingParams(max_tokens=STEPS, ignore_eos=True)
    prompt = {"prompt_token_ids": prompt_of(32, llm.engine.runner.vocab_size)}
    llm.generate(prompt, params, use_tqdm=False)
    with cProfile.Profile() as recorded:
        llm.generate(prompt, params, use_tqdm=False)
    stats: Any = pstats.Stats(recorded)
    found = sorted(stats.stats.items(), key=lambda each: -each[1][2])[:LINES]
    return [
        {"function": f"{Path(file).name} {name}", "calls": calls / STEPS, "ms": 1000 * own / STEPS}
        for (file, _, name), (calls, _, own, *_) in found
    ]


def show(console: Console, result: Mapping[str, Any]) -> None:
    """Print tokens per second of each engine in each case, the ratio to the fastest baseline, drafts and a step."""
    plan, cases = result["plan"], result["cases"]
    print_header(console, result, f"{plan['model']}, {plan['dtype']}", rounds_and_threads(plan))
    for note in result["notes"]:
        console.print(note)
    names = list(next(iter(cases.values()))["runs"])
    tables = figures_table("tokens/s", *names), figures_table("tiny-llm is", "", "the fastest baseline")
    for case, each in cases.items():
        speeds = {name: speed(runs) for name, runs in each["runs"].items()}
        tables[0].add_row(case, *(f"{each:.1f}" for each in speeds.values()))
        if baseline := fastest_baseline(speeds):
            tables[1].add_row(case, f"{speeds[OURS] / speeds[baseline]:.2f} ×", baseline)
    for table in (table for table in tables if table.row_count):
        console.print("", table, sep="\n")
    for case, each in cases.items():
        for line in drafts(each):
            console.print(f"{case}: {line}")
    if "limits" in result:
        _show_step(console, result)


def speed(runs: Sequence[Mapping[str, Any]]) -> float:
    """Tokens of answers per second, in the median; those of prompts where an answer has one token."""
    kind = "output_tokens" if runs[0]["output_tokens"] > runs[0]["requests"] else "prompt_tokens"
    return per_second(list(runs), kind)


def _show_step(console: Console, result: Mapping[str, Any]) -> None:
    limit, runs = result["limits"], next(iter(result["cases"].values()))["runs"]
    most = limit["bytes_per_second"] / limit["file_bytes"]
    speed_of_memory = f"{limit['bytes_per_second'] / 1e9:.1f} GB/s"
    console.print(
        f"\nMemory delivers {speed_of_memory}, which is the bytes of the file {most:.0f} times per second"
    )
    for name, each in runs.items():
        console.print(f"{name}: {100 * speed(each) / most:.0f} % of that")
    table = figures_table("a step's milliseconds", "own ms", "calls")
    for line in result["profile"]:
        table.add_row(line["function"], f"{line['ms']:.2f}", f"{line['calls']:.1f}")
    console.print("", table, sep="\n")
