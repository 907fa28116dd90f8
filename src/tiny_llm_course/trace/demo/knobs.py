"""The options of the demo that change what happens, and remedies for common problems; for `--help`."""

import io

from rich.console import Console
from rich.table import Table

# Name in the scheduler or its `Turns` -> (its option of the demo, what it does).
KNOBS = {
    "prefill_step": (
        "--prefill-step",
        "tokens of a chunk: smaller shortens gaps, larger ends prompts sooner",
    ),
    "chunker": ("--chunker adaptive", "chooses the size of each chunk from the times of earlier ones"),
    "batch_size": (
        "--batch-size",
        "requests that decode together: more throughput, slower steps, more memory",
    ),
    "max_seq_len": ("--max-seq-len", "tokens of a slot, prompt and answer: its cache is kept for each slot"),
    "queue": ("--priorities", "interactive requests before those of the class batch, with ageing"),
    "pause_prefill": ("policy `pausing`", "a long prompt makes room for a shorter one, and continues later"),
    "reserved_decode_slots": ("--reserved-decode-slots", "slots that long texts (class batch) may not take"),
    "peak_load": ("--peak-load", "share of busy slots at which a long prompt waits"),
    "patience": ("--patience", "maximum number of times that a prompt makes room, so no wait is endless"),
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
        "`pdm run bench-throughput --preset chunked-prefill` shows the best chunk size for this machine",
    ),
)


def help_text() -> str:
    """Both tables as text, 80 columns wide."""
    text = io.StringIO()
    knobs = Table("in the scheduler", "option", "what it does", box=None, pad_edge=False)
    for name, row in KNOBS.items():
        knobs.add_row(name, *row)
    troubles = Table("trouble", "try", box=None, pad_edge=False)
    for row in TROUBLES:
        troubles.add_row(*row)
    Console(width=80, file=text, highlight=False).print(knobs, "", troubles, sep="\n")
    return text.getvalue()
