"""The screen of Day 2.6: which request was in which slot at each step, and the same requests in static batches.

The clock counts the steps of the model, so the events of the learner's own code say what happened in which step.
"""

from collections import deque
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tiny_llm_engine.models.tokenizer import load_tokenizer
from tiny_llm_engine.solutions.port import Port
from tiny_llm_engine.solutions.solution_types import ServingPackage

from ..trace.prompts import rendered
from ..trace.serve import CountedModel
from ..trace.tables import figures_table
from .shared import MODEL, shipped

SLOTS, MAX_SEQ_LEN = 3, 64
# A question, and what is special about its request.
QUESTIONS = (
    ("What is RoPE?", {}),
    ("What is a KV cache?", {"max_tokens": 4}),
    ("Thank you", {}),
    ("What is a logit?", {}),
    ("Which day is about RoPE?", {}),
    ("What is vLLM?", {"stop": "."}),
    ("Which day is about sampling?", {}),
    ("What is attention?", {}),
)
STYLES = {"-": "dim", "·": "red"}


@dataclass
class Served:
    """The record of one way of serving: its requests, events and number of steps."""

    name: str
    requests: list
    events: list
    steps: int


def show(b: Port, console: Console) -> None:
    """Serve the questions twice and draw the slots over the steps of the model."""
    s = b.serving
    tokenizer = load_tokenizer(MODEL)
    runner = b.runner(b.Qwen3ModelWeek2(shipped(b)))
    runs = [_run(s, runner, tokenizer, *way) for way in (("continuous", _continuous), ("static", _static))]
    _answers(console, runs[0].requests)
    console.print(f"\n{SLOTS} slots, a row each; a column is one step of the model.")
    console.print("A  the prompt of A, which gives its first token   a  one more token of A")
    console.print("-  waits while another prompt is computed         ·  idle\n")
    for run, title in zip(
        runs, ("a free slot is filled at once", "a batch waits for its longest answer"), strict=True
    ):
        console.print(f"{run.name}: {title}", style="bold")
        for cells in _grid(run):
            console.print(Text.assemble(*((c, STYLES.get(c, "")) for c in cells)))
        console.print()
    _bill(console, runs)


def _run(s: ServingPackage, runner, tokenizer, name: str, serve) -> Served:
    counted, events = CountedModel(runner), []
    requests = [_request(s, counted, tokenizer, i, *case) for i, case in enumerate(QUESTIONS)]
    serve(s, counted, tokenizer, requests, events.append)
    return Served(name, requests, events, counted.calls)


def _request(s: ServingPackage, model, tokenizer, index: int, question: str, special: dict):
    return s.Request(
        model,
        tokenizer,
        rendered(tokenizer, question),
        prompt_idx=index,
        max_seq_len=MAX_SEQ_LEN,
        sampling=s.SamplingParams(max_tokens=special.get("max_tokens")),
        stop=special.get("stop"),
    )


def _continuous(s: ServingPackage, model, tokenizer, requests: list, on_event) -> None:
    s.batch_generate(model, tokenizer, requests, MAX_SEQ_LEN, SLOTS, clock=model.clock, on_event=on_event)


def _static(s: ServingPackage, model, tokenizer, requests: list, on_event) -> None:
    """Fill all slots, then decode until the last of them has ended."""
    batch = s.Batch(model, SLOTS, MAX_SEQ_LEN, clock=model.clock, on_event=on_event)
    waiting = deque(requests)
    while waiting:
        while waiting and batch.free_slot is not None:
            batch.prefill_and_place(waiting.popleft())
        while batch.running:
            batch.decode()
            batch.remove_ended()
    batch.close()


def _grid(run: Served) -> list[list[str]]:
    """One row per slot, one letter per step."""
    grid = [["·"] * run.steps for _ in range(SLOTS)]
    for request in run.requests:
        tokens = [event for event in run.events if event.request is request and event.kind == "token"]
        slot = next((event.slot for event in tokens if event.slot is not None), None)
        if slot is None:  # it ended with its first token
            continue
        columns = [event.time - 1 for event in tokens]
        letter = _letter(request)
        grid[slot][columns[0] : columns[-1] + 1] = "-" * (columns[-1] + 1 - columns[0])
        for column in columns:
            grid[slot][column] = letter.lower()
        grid[slot][columns[0]] = letter
    return grid


def _letter(request) -> str:
    return chr(ord("A") + request.prompt_idx)


def _answers(console: Console, requests: list) -> None:
    table = Table("", "question", "asked for", "tokens", "ended by", "answer", box=None, pad_edge=False)
    for request, (question, special) in zip(requests, QUESTIONS, strict=True):
        asked = ", ".join(f"{name}={value!r}" for name, value in special.items())
        text = request.text if len(request.text) <= 15 else request.text[:14] + "…"
        ending = str(len(request.tokens)), request.finish_reason, Text(text)
        table.add_row(_letter(request), question, asked, *ending)
    console.print(table)


def _bill(console: Console, runs: list[Served]) -> None:
    table = figures_table("", "steps", "prompts", "decodes", "tokens", "waited", "idle", "used")
    for run in runs:
        cells = "".join(map("".join, _grid(run)))
        prompts = sum(event.kind == "prefill" for event in run.events)
        waited, idle = cells.count("-"), cells.count("·")
        used = len(cells) - waited - idle
        counts = (run.steps, prompts, run.steps - prompts, used, waited, idle)
        table.add_row(run.name, *map(str, counts), f"{used / len(cells):.0%}")
    console.print(table)
