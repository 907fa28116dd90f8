"""The order of requests, for the screens of Day 2.7: a short prompt after a long one, three policies."""

from rich.console import Console

from tiny_llm_engine.solutions.solution_types import ServingPackage

from ..trace.simulation.step_cost import AdditiveCost, Line
from ..trace.tables import figures_table
from ..trace.trace import WHOLE, Lane, Trace
from ..trace.workload import LONG, RUNNING, SHORT, RequestSpec, Workload
from .shared import simulated
from .stalls_drawn import CHUNK, NARROW, timeline

# D arrives while the first chunk of C runs.
DRAWN = Workload(
    "drawn",
    "",
    (
        RequestSpec(RUNNING, 1, 12, name="A"),
        RequestSpec(LONG, 22, 3, 2, "C"),
        RequestSpec(SHORT, 3, 3, 3, "D"),
    ),
    3,
    CHUNK,
)
PER_TOKEN = AdditiveCost(prefill=Line(0, 1, 0), decode=Line(0, 1, 0))  # a unit of time for each token
# The scene of Predict: both arrive when all four decode.
PREDICTED = Workload(
    "predicted",
    "4 readers; a prompt of 2,048 tokens arrives, and “hello”, of 5, right after it",
    (
        *(RequestSpec(RUNNING, 1, 40),) * 4,
        RequestSpec(LONG, 2048, 4, 9, "long"),
        RequestSpec(SHORT, 5, 40, 9, "hello"),
    ),
    6,
)
POLICIES = (
    ("whole", WHOLE, {}),
    ("chunks, in order", None, {}),
    ("chunks, with pausing", None, {"pause_prefill": True}),
)
PATIENCE, SHORT_PROMPTS, LONG_TOKENS = (1, 2, 4, 8), 12, 1024


def show_timelines(names: ServingPackage, console: Console) -> None:
    """Draw the same requests under each policy."""
    console.print("A decodes. C arrives with a prompt of 22 tokens, and then D with 3 tokens.", width=NARROW)
    console.print("\n-  queued or paused\n·  waits as agreed   !  stalls\n")
    for name, chunk, turns in POLICIES:
        console.print(name, style="bold")
        for line in timeline(names, DRAWN, chunk or CHUNK, **turns):
            console.print(line)
        console.print()


def show_two_promises(names: ServingPackage, console: Console) -> None:
    """Show the scene of Predict: what readers are promised, and the first words of the two arrivals."""
    console.print(f"{PREDICTED.says}. Each token takes a unit of time.", width=NARROW)
    console.print("First words of “long” and “hello”: counted from the next step on.\n", width=NARROW)
    table = figures_table("", "stalls", "longest gap", "long", "hello")
    for name, chunk, turns in POLICIES:
        trace = simulated(names, PER_TOKEN, PREDICTED, chunk or PREDICTED.promise, **turns)
        first = [_first_word(trace, trace.named(lane)) for lane in ("long", "hello")]
        figures = (f"{n:,.0f}" for n in (trace.stall_steps, trace.longest_gap, *first))
        table.add_row(name.removeprefix("chunks, ").removeprefix("with "), *figures)
    console.print(table)


def _first_word(trace: Trace, lane: Lane) -> float:
    """Time from the first step after a request's arrival to its first token."""
    begins = (span.start for span in trace.spans if span.kind == "chunk" and span.start >= lane.arrival_time)
    return lane.token_times[0] - min(begins)


def show_patience(names: ServingPackage, console: Console) -> None:
    """Show how many short prompts pass a long one while they keep coming."""
    short = tuple(RequestSpec(SHORT, 8, 1, call, f"s{call}") for call in range(SHORT_PROMPTS))
    workload = Workload("passing", "", (RequestSpec(LONG, LONG_TOKENS, 2, name="long"), *short))
    arrivals = f"a new prompt of 8 tokens in each of the first {SHORT_PROMPTS} calls of the model"
    prompt = f"A prompt of {LONG_TOKENS:,} tokens, chunks of {workload.promise}"
    console.print(f"{prompt}, and {arrivals}:\n", width=NARROW)
    table = figures_table("patience", "short ones pass", "first word, long")
    for patience in PATIENCE:
        trace = simulated(names, PER_TOKEN, workload, workload.promise, pause_prefill=True, patience=patience)
        long = trace.named("long")
        passed = sum(lane.token_times[0] < long.token_times[0] for lane in trace.lanes if lane is not long)
        table.add_row(str(patience), str(passed), f"{_first_word(trace, long):,.0f}")
    console.print(table)
