"""`pdm run bench-throughput --preset speed` and `--preset drafts`: a real model beside llama.cpp, case by case.

`speed` has random prompts and answers of fixed lengths, `drafts` real text in four kinds of tasks, whose answers end
where the model ends them. Of one request that decodes, `speed` also says where the time of a step goes.
"""

import cProfile
import pstats
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tiny_llm_course.trace.workload import prompt_of
from tiny_llm_engine.solutions.port import Port
from tiny_llm_extensions.llm import LLM

from .baselines import BASELINES, file_of, is_installed
from .options import plain
from .real_text import KINDS

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
