"""What can be turned in the demo, and what to do when something is wrong."""

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from .runs import POLICIES, Demo

# Name in the scheduler or its `Turns` -> (its option of the demo, what it does).
KNOBS = {
    "prefill_step": (
        "--prefill-step",
        "tokens of a chunk: smaller shortens gaps, larger ends prompts sooner",
    ),
    "batch_size": (
        "--batch-size",
        "requests that decode together: more throughput, slower steps, more memory",
    ),
    "max_seq_len": ("--max-seq-len", "tokens of a slot, prompt and answer: its cache is kept for each slot"),
    "pause_prefill": ("policy `pausing`", "a long prompt makes room for a shorter one, and goes on later"),
    "reserved_decode_slots": ("--reserved-decode-slots", "slots that long texts (class batch) may not take"),
    "patience": ("--patience", "so often a prompt makes room; then it goes on, and no wait has no end"),
}
TROUBLES = (
    (
        "out of memory",
        "`--prefill-step 64` makes a step smaller, `--batch-size 2` and a smaller `--max-seq-len` the caches, "
        "`--quantize 4bit` the weights",
    ),
    (
        "model not found",
        "`--model tiny-qwen3` is shipped; another is a folder with config.json, or a hub id. `pdm run doctor` says "
        "what is missing",
    ),
    (
        "slow first token",
        "of a long text: `--prefill-step 512`; of a short question: the policy `pausing`; of all: "
        "`pdm run bench-chunked-prefill` shows which chunk this machine likes",
    ),
)


def knob_table(values: Mapping[str, Any]) -> Table:
    """Every knob with its value in this run."""
    shown = Table("knob", "here", "turn it by", "what it does", box=None, pad_edge=False)
    for name, (option, does) in KNOBS.items():
        shown.add_row(name, str(values[name]), option, does)
    return shown


def trouble_table() -> Table:
    shown = Table("trouble", "try", box=None, pad_edge=False)
    for trouble, remedy in TROUBLES:
        shown.add_row(trouble, remedy)
    return shown


def knob_values(demo: Demo) -> dict[str, Any]:
    """The value of every knob in this run."""
    pausing = ", ".join(policy.name for policy in POLICIES if policy.pauses)
    return {**demo.knobs.__dict__, "max_seq_len": demo.workload.max_seq_len, "pause_prefill": pausing}


def show_knobs(console: Console, values: Mapping[str, Any]) -> None:
    console.print()
    console.print(knob_table(values))
    console.print()
    console.print(trouble_table())
