"""The screen of Day 4.6: prompts elsewhere beside chunks, then a buffer, a late transfer and a router.

The learner's code schedules, saves, sends, accepts and routes. Time is virtual, and no model runs.
"""

from dataclasses import replace
from statistics import median
from typing import Any

from rich.console import Console

from tiny_llm_engine.events import TokenTimes
from tiny_llm_engine.solutions.port import Port
from tiny_llm_engine.solutions.solution_types import Event, ServingPackage
from tiny_llm_extensions.kv_transfer.transfers import SavedBlock, text_digest

from ..trace.pipeline.gantt import COLUMNS, Bar, cells_of, show_rows
from ..trace.simulation.prompts_elsewhere import computed_of, table_of_arrived
from ..trace.simulation.simulator import Simulation
from ..trace.simulation.step_cost import AdditiveCost
from ..trace.tables import figures_table
from ..trace.workload import SHORT, RequestSpec

COST = AdditiveCost.of_terms(step=0.010, chunk_token=0.0001, decode=0.0001)
# Seconds of the arrival, tokens of the prompt and of the answer.
REQUESTS = ((0.0, 200, 40), (0.02, 900, 30), (0.1, 600, 30), (0.2, 1200, 20), (0.35, 300, 30), (0.4, 400, 20))
SPECS = dict(enumerate(RequestSpec(SHORT, tokens, answer, time=time) for time, tokens, answer in REQUESTS))
COLOURS = "cyan", "yellow", "green", "magenta", "blue", "white"
SIGNS = [(name, f"not dim {colour}") for name, colour in zip("ABCDEF", COLOURS, strict=True)]
LINKS = (0.0002, 0.00002)  # seconds of a token
ALONE, BUDGETS = 512, (64, 256)  # tokens of a step: of P and D, and of engines that do both
SECONDS = 0.7  # of a chart
ROWS, SIZE, X, Y = 5, 64, range(200), range(150)  # of an outbox, and two prompts in it
PATIENCE, LEAST, ANSWER = 0.1, 256, 100  # seconds; tokens that are worth a transfer, and of each answer
TURNS = (("a", 1000), ("b", 700), ("a", 60), ("b", 900), ("c", 40))  # conversations, and tokens that are new
Specs = dict[int, RequestSpec]
Run = tuple[dict[str, list[Bar]], list[Event]]  # rows of a chart, and the events of engines that answer


def show(b: Port, console: Console) -> None:
    """Timelines and latencies of both ways, and what a transfer goes through."""
    s, table = b.serving, figures_table("ms", "first token", "the slowest", "longest gap", "last token")
    console.print("A step takes 10 ms and 0.1 ms per token. A letter is a prompt, ▪ decodes alone.")
    runs = {
        **{f"link of {1000 * seconds:g} ms per token": elsewhere(s, seconds) for seconds in LINKS},
        **{f"two engines, chunks of {budget}": in_chunks(s, budget) for budget in BUDGETS},
    }
    for name, (rows, events) in runs.items():
        console.print(f"\n{name}\n", style="bold")
        cells = {name: cells_of(bars, SECONDS, COLUMNS) for name, bars in rows.items()}
        show_rows(console, cells, SECONDS, COLUMNS)
        table.add_row(name, *figures(events))
    console.print("", table, sep="\n")
    show_outbox(s, console)
    show_late(s, console)
    show_routes(s, console)


def elsewhere(s: ServingPackage, seconds: float) -> Run:
    """P computes the prompts and D decodes; `seconds` is the time per token on the link."""
    prompts = served(s, {number: replace(spec, answer=1) for number, spec in SPECS.items()}, ALONE)
    computed = computed_of(prompts, lambda number: ("P", "D"))
    link: list[Bar] = []
    for count, last in enumerate(computed, 1):
        end = s.arrivals(computed[:count], seconds)[last.request]
        link.append((end - seconds * last.tokens, end, *SIGNS[last.request]))
    arrived = s.arrivals(computed, seconds)
    sent = {number: replace(spec, time=arrived[number]) for number, spec in SPECS.items()}
    decodes = served(s, sent, ALONE, table_of_arrived(s))
    return {"P": bars_of(prompts), "link": link, "D": bars_of(decodes)}, decodes


def in_chunks(s: ServingPackage, budget: int) -> Run:
    """Two engines with every second request, prompts in chunks beside decodes."""
    shares = [dict(list(SPECS.items())[engine::2]) for engine in range(2)]
    one, two = (served(s, share, budget) for share in shares)
    return {"engine 1": bars_of(one), "engine 2": bars_of(two)}, [*one, *two]


def served(s: ServingPackage, specs: Specs, budget: int, table: type | None = None) -> list[Event]:
    """The events of an engine that serves these requests."""
    events: list[Event] = []
    engine = Simulation(s, COST, on_event=events.append, max_num_batched_tokens=budget)
    engine.loop.scheduler.new_table = table or s.BlockTable
    for number, spec in specs.items():
        engine.send(spec, number)
    engine.run()
    return events


def bars_of(events: list[Event]) -> list[Bar]:
    """A bar for each step, with the sign of its largest chunk."""
    return [(event.start, event.time, *sign_of(event)) for event in events if event.start is not None]


def sign_of(step: Event) -> tuple[str, str]:
    chunks = [(part.tokens, part.requests[0].request_id) for part in step.parts if part.kind == "chunk"]
    tokens, number = max(chunks, default=(0, 0))
    return SIGNS[number] if tokens > 1 else ("▪", "dim")


def figures(events: list[Event]) -> list[str]:
    """Milliseconds to the first token, median and longest; of the longest gap; to the last token."""
    times = {number: TokenTimes(spec.time) for number, spec in SPECS.items()}
    for event in events:
        if event.kind == "token":
            times[event.request.request_id].add_token(event.time)
    firsts, gaps = ([getattr(one, name) or 0.0 for one in times.values()] for name in ("ttft", "longest_gap"))
    seconds = median(firsts), max(firsts), max(gaps), max(event.time for event in events)
    return [f"{1000 * each:.1f}" for each in seconds]


def show_outbox(s: ServingPackage, console: Console) -> None:
    """The rows of a buffer after each thing that happens to two prompts."""
    box = s.Outbox(ROWS, SIZE, keep_seconds=1.0)
    for name, prompt in (("x", X), ("y", Y)):
        box.begin(name, prompt)
        box.open(name)

    def save(name: str, computed: int) -> None:
        box.saved(name, box.to_save(name, computed))

    console.print(f"\nThe outbox of P, {ROWS} rows of {SIZE} tokens: x has {len(X)} tokens, y {len(Y)}\n")
    for text, happen in (
        ("80 tokens of x are computed", lambda: save("x", 80)),
        ("all of x: its last block has 8 tokens", lambda: save("x", len(X))),
        ("all of y, and one row is free", lambda: save("y", len(Y))),
        ("D has read x", lambda: box.close("x", True, 0.3)),
        ("the next step of P", lambda: save("y", len(Y))),
        ("P's request for y ends", lambda: box.end("y", 0.4)),
        ("D dies while it reads y", lambda: box.close("y", False, 0.5)),
        ("another engine begins to read y", lambda: box.open("y")),
        ("a second later", lambda: box.expire(1.5)),
        ("it has read y", lambda: box.close("y", True, 1.6)),
    ):
        happen()
        held = {block.row: name for name, each in box.transfers.items() for block in each.blocks}
        console.print(f"{text:40}{' '.join(held.get(row, '·') for row in range(ROWS))}")


def show_late(s: ServingPackage, console: Console) -> None:
    """A prompt of which the end never comes."""
    incoming = s.Incoming(X, 0, PATIENCE, PATIENCE)
    console.print(f"\nWhat D accepts of x, with {PATIENCE:g} s of patience\n")
    for time, start, stop in ((0.02, 0, 64), (0.05, 64, 128), (0.06, 64, 128)):
        new = incoming.accept(SavedBlock(start, stop, 0), text_digest(X[:stop]), time)
        console.print(f"{1000 * time:3.0f} ms  tokens {start} to {stop - 1}: {len(new)} are new")
    if incoming.is_late(0.17):
        console.print(f"170 ms  {incoming.lateness}: D computes from token {incoming.received} on")


def show_routes(s: Any, console: Console) -> None:
    """The engines of each turn of some conversations."""
    loads = s.SplitLoads(s.ReplicaLoads(SIZE), s.ReplicaLoads(SIZE), LEAST)
    loads.set_engines(["P1", "P2"], ["D1", "D2"])
    table = figures_table("turn of", "prompt", "known to its D", "computed by", "decoded by")
    texts: dict[str, list[int]] = {name: [] for name, _ in TURNS}
    for number, (name, new) in enumerate(TURNS):
        texts[name] += range(10_000 * number, 10_000 * number + new)
        loads.finish(name)
        known, route = loads.decode.cached(texts[name]), loads.send(name, texts[name], ANSWER)
        sizes = f"{len(texts[name]):,}", f"{known[route.decode]:,}"
        table.add_row(name, *sizes, route.prefill or route.decode, route.decode)
        texts[name] += [number] * ANSWER
    console.print(f"\nTurns of conversations; {LEAST} tokens are worth a transfer\n")
    console.print(table)
