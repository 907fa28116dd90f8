"""The screen of Day 2.7: two timelines of the same requests, the stalls predicted and counted, and what chunks cost.

The learner's own scheduler runs twice on a model that does nothing, whose clock moves one unit a token: both timelines
are exact. Then it serves the shipped model, and the clock is a real one.
"""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ...lab.bench.chunked_prefill import shown, sweep
from ...lab.bench.chunked_prefill_report import median, percent
from ...lab.cost_model import measured_costs
from ...lab.serve import Serving, serve
from ...lab.simulated_model import SimulatedModel
from ...lab.trace import WHOLE, Lane, Trace
from ...lab.workload import LONG, RUNNING, SHORT, RequestSpec, Workload, decode_heavy
from ...runtime.loading import load_checkpoint
from ...runtime.port import resolve_serving
from .chunk_costs import MEASURED as OF_MEMORY
from .chunk_costs import show_activation_memory, show_lazy_chunks

SHOWN_ON = "torch"
MEASURED = (*OF_MEMORY, r"(mlx|torch) on \w+", r" *[\d,.]+ ms", r" *[−+±][\d,]+ %")
MODEL = "tiny-qwen3"
STEPS = (32, 128, 512, None)
# What is drawn: the third one arrives when both others have begun.
CHUNK = 4
DRAWN = Workload(
    "drawn",
    "",
    (*(RequestSpec(RUNNING, 1, 9, name=name) for name in "AB"), RequestSpec(LONG, 22, 3, 4, "C")),
    3,
    CHUNK,
)
# Of the measured table: three that run, a long prompt, and a short one behind it.
MEASURED_WORKLOAD = Workload(
    "measured",
    "3 requests decode; a prompt of 1,024 tokens arrives, and one of 8 right behind it",
    (
        *(RequestSpec(RUNNING, 16, 48),) * 3,
        RequestSpec(LONG, 1024, 4, arrives=8),
        RequestSpec(SHORT, 8, 4, arrives=8),
    ),
    5,
)
ROUNDS = 2
FIGURES = ("ttft_long", "ttft_short", "tbt_p99", "longest_gap", "total")


def show(b, console: Console) -> None:
    """Draws a small run before and after, counts the stalls of a long one, then measures."""
    names = resolve_serving(b.solution.__name__.partition(".")[0])
    console.print("A and B decode. C arrives with a prompt of 22 tokens. A column is the time of one token.")
    console.print(
        "C  its prompt      a b c  a new token      ·  waits, as agreed: one chunk      !  stalls\n"
    )
    for title, chunk in (
        ("before: the whole prompt in one step", WHOLE),
        (f"after: chunks of {CHUNK}", CHUNK),
    ):
        console.print(title, style="bold")
        for line in _timeline(names, chunk):
            console.print(line)
        console.print()
    _stalls(names, console)
    _measured(b, names, console)
    console.print()
    show_activation_memory(b, console)


def show_mlx(b, console: Console) -> None:
    """What it costs to forget the evaluation between two chunks."""
    show_lazy_chunks(b, console)


def _timeline(names, chunk: int) -> list[Text]:
    """One line a request, of the learner's scheduler on a clock that moves one unit a token."""
    model = SimulatedModel()
    trace = serve(Serving(names, model, clock=model.clock), DRAWN, chunk).trace()
    return [_line(trace, lane) for lane in trace.lanes]


def _line(trace: Trace, lane: Lane) -> Text:
    """A request's cells: its prompt, its tokens, and between two tokens what it waited for."""
    letter, cells = lane.name, [" "] * int(trace.end)
    for span in trace.of(lane):
        if span.kind == "chunk":
            cells[int(span.start) : int(span.end)] = letter * span.tokens
        elif span.kind == "decode":
            cells[int(span.end) - 1] = letter.lower()
    used = [place for place, cell in enumerate(cells) if cell != " "]
    waited = 0
    for place in range(used[0], used[-1]):
        waited = waited + 1 if cells[place] == " " else 0
        if waited:
            cells[place] = "·" if waited <= CHUNK else "!"
    text = Text(f"{letter}  ", "dim")
    for cell in cells:
        text.append(cell, {"!": "bold red", "·": "dim"}.get(cell, ""))
    text.rstrip()
    return text


def _stalls(names, console: Console) -> None:
    """The prediction of the chapter, and what the learner's own metrics count."""
    long = decode_heavy(2048)
    pieces = -(-2048 // long.promise)
    console.print(f"{long.says};")
    console.print(f"{long.promise} tokens between two decode steps are promised.")
    console.print(f"predicted without chunks: ⌈2,048 / {long.promise}⌉ − 1 = {pieces - 1} stall steps\n")
    table = Table("chunk", "stall steps, counted", "longest gap, simulated ms", box=None, pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    for step in STEPS:
        model = SimulatedModel(measured_costs())
        metrics = serve(Serving(names, model, clock=model.clock), long, step).metrics
        table.add_row(shown(step), str(metrics.stall_steps), f"{1000 * metrics.longest_gap:.1f}")
    console.print(table)
    console.print()


def _measured(b, names, console: Console) -> None:
    """Each chunk size on the shipped model, and what it is beside none."""
    checkpoint = load_checkpoint(MODEL, b.name, b.device, b.float_dtype)
    model = b.Qwen3ModelWeek2(checkpoint, attention="device")
    runner = b.runner(model, chunk_mask=b.chunked_attention_mask)
    found = sweep(Serving(names, runner), MEASURED_WORKLOAD, STEPS, ROUNDS, lambda text: None)
    console.print(f"{MODEL}, {b.name} on {b.device}, medians of {ROUNDS} runs:")
    console.print(f"{MEASURED_WORKLOAD.says}\n")
    heads = ("TTFT long", "TTFT short", "TBT p99", "longest gap", "total")
    console.print("chunk " + "".join(f"{head:>14}" for head in heads), style="bold")
    none = {figure: median(found["runs"]["none"], figure) for figure in FIGURES}
    for step in STEPS:
        mine = {figure: median(found["runs"][shown(step)], figure) for figure in FIGURES}
        console.print(f"{shown(step):<6}" + "".join(f"{1000 * mine[f]:>11,.1f} ms" for f in FIGURES))
        if step is not None:
            changes = "".join(f"{percent(mine[f] / none[f] - 1):>14}" for f in FIGURES)
            console.print(f"{'':<6}{changes}", style="dim")
