"""Stalls, for the screens of Day 2.7: timelines on a model without arithmetic, and the stalls of a long prompt.

The model's clock moves one unit per token of a prompt and per decode step, so a timeline is exact.
"""

from rich.console import Console
from rich.text import Text

from tiny_llm_engine.solutions.port import Port
from tiny_llm_engine.solutions.solution_types import ServingPackage

from ..trace.chunk_sweep import shown
from ..trace.simulation.cost_fit import measured_cost
from ..trace.simulation.step_cost import UNITS
from ..trace.tables import figures_table
from ..trace.trace import WHOLE, Lane, Trace
from ..trace.workload import LONG, RUNNING, RequestSpec, Workload, decode_heavy
from .shared import simulated

NARROW = 44  # columns that a telephone shows without scrolling
STEPS = (32, 128, 512, None)
CHUNK = 4
# The third one arrives when both others have begun.
DRAWN = Workload(
    "drawn",
    "",
    (*(RequestSpec(RUNNING, 1, 9, name=name) for name in "AB"), RequestSpec(LONG, 22, 3, 4, "C")),
    3,
    CHUNK,
)
VISIBLE, HIDDEN = "██", " ·"
STYLES = {"!": "bold red", "·": "dim", "-": "dim"}


def show_timelines(names: ServingPackage, console: Console) -> None:
    """Draw the same requests before and after."""
    says = "A and B decode. C arrives with a prompt of 22 tokens. Time runs to the right."
    console.print(says, width=NARROW)
    console.print("\nABC  a prompt   abc  a new token\n-  queued   ·  waits as agreed   !  stalls\n")
    for title, chunk in (("before: the whole prompt in one step", WHOLE), ("after: chunks of 4", CHUNK)):
        console.print(title, style="bold")
        for line in timeline(names, DRAWN, chunk):
            console.print(line)
        console.print()


def timeline(names: ServingPackage, workload: Workload, chunk: int, **turns) -> list[Text]:
    """A timeline as text, one line per request."""
    trace = simulated(names, UNITS, workload, chunk, **turns)
    return [_line(trace, lane) for lane in trace.lanes]


def _line(trace: Trace, lane: Lane) -> Text:
    """A request's cells: its queue, its prompt, its tokens, and what it waited for between two tokens."""
    letter, cells = lane.name, [" "] * int(trace.end)
    for span in trace.of(lane):
        start, end = int(span.start), int(span.end)
        if span.kind == "chunk":
            cells[start:end] = letter * span.tokens
        elif span.kind == "decode":
            cells[end - 1] = letter.lower()
        elif span.kind in ("queued", "paused"):
            cells[start:end] = "-" * (end - start)
    _mark_waits(cells, trace.prefill_step)
    text = Text.assemble((f"{letter}  ", "dim"))
    for cell in cells:
        text.append(cell, STYLES.get(cell, ""))
    text.rstrip()
    return text


def _mark_waits(cells: list[str], promise: int) -> None:
    """Mark the empty cells between a request's first cell and its last."""
    used = [place for place, cell in enumerate(cells) if cell != " "]
    waited = 0
    for place in range(used[0], used[-1]):
        waited = waited + 1 if cells[place] == " " else 0
        if waited:
            cells[place] = "·" if waited <= promise else "!"


def show_stalls(names: ServingPackage, console: Console) -> None:
    """Print the chapter's prediction, and the counted stalls."""
    long = decode_heavy(2048)
    pieces = -(-2048 // long.promise)
    promise = f"{long.promise} tokens between two decode steps are promised."
    console.print(f"{long.says}; {promise}\n", width=NARROW)
    console.print(f"predicted without chunks:\n⌈2,048 / {long.promise}⌉ − 1 = {pieces - 1} stall steps\n")
    table = figures_table("chunk", "stalls", "longest gap, simulated ms")
    for step in STEPS:
        trace = simulated(names, measured_cost(), long, step)
        table.add_row(shown(step), str(trace.stall_steps), f"{1000 * (trace.longest_gap or 0.0):.1f}")
    console.print(table)


def show_mask(b: Port, console: Console) -> None:
    """Draw the mask of a chunk."""
    start, size, total = 3, 3, 10
    console.print(f"A chunk of {size} tokens after {start} others, in a cache of {total} keys.", width=NARROW)
    console.print("Row: a query at its position. Column: a key.")
    console.print(f"{VISIBLE} it may look, {HIDDEN} it may not.\n")
    mask = b.numpy(b.chunked_attention_mask(start, size, total, b.dtype("float32")))
    for query, row in enumerate(mask):
        cells = "".join(f" {VISIBLE if value == 0 else HIDDEN}" for value in row)
        console.print(f"query {query} at {start + query} {cells}")
