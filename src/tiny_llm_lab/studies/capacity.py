"""How many requests per second a scheduler serves within a target (Sarathi-Serve, its capacity search)."""

from collections.abc import Callable
from functools import cache, partial

from .served import StudyPlan, latencies_of_seeds, medians, options_of, runs_of
from .study import Study

# Of Yi-34B: P99 of the time between tokens in seconds, and the budget that the artefact gives Sarathi-Serve for it.
TARGETS = {"strict": (0.2, 512), "relaxed": (1.0, 2048)}
DELAY = 2.0  # seconds: what half of the requests may wait for their admission
SCHEDULERS = ("Orca", "vLLM", "Sarathi-Serve")
TRACES = ("openchat", "arxiv")
LOWEST, STEP, STEPS = 0.05, 1.05, 120  # the rates: 0.05 to 17 requests per second, in steps of 5 %
PAPER = {("strict", "vLLM"): 3.7, ("strict", "Orca"): 4.0}  # Sarathi-Serve's capacity as a multiple, "up to"
COLUMNS = ("trace", "target", "scheduler", "req/s", "Sarathi-Serve is ×", "paper, up to ×")
DIFFERS = (
    "The paper's rates are in a figure alone; what is published as numbers are the largest ratios of Yi-34B.",
    "A trial of few requests is over before whole prompts can stop many tokens: give it 512 or more (artefact: 2,048).",
)


def rate_of(step: int) -> float:
    """A rate of the ladder, in requests per second."""
    return LOWEST * STEP**step


def largest_step(holds: Callable[[float], bool]) -> int | None:
    """The highest rate of the ladder that holds, found by halving; None when the lowest does not."""
    if not holds(rate_of(0)):
        return None
    low, high = 0, STEPS
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(rate_of(middle)) else (low, middle)
    return low


def trials(
    plan: StudyPlan, trace: str, scheduler: str, budget: int | None
) -> Callable[[float], tuple[float, float]]:
    """A function from rate to P99 TBT and median delay, in seconds.

    Each rate is served once, for all targets.
    """

    @cache
    def trial(rate: float) -> tuple[float, float]:
        found = latencies_of_seeds(plan, trace, rate, **options_of(scheduler, trace, budget or 512))
        tbt, delay = medians(found, lambda run: run.tbt(99), lambda run: run.delay(50))
        return tbt, delay

    return trial


def capacity(trial: Callable[[float], tuple[float, float]], target: float) -> float:
    """Requests per second within the target for the time between tokens; 0 if no rate of the ladder is."""

    def holds(rate: float) -> bool:
        tbt, delay = trial(rate)
        return tbt <= target and delay <= DELAY

    step = largest_step(holds)
    return 0.0 if step is None else rate_of(step)


def capacities(plan: StudyPlan, trace: str) -> dict[tuple[str, str], float]:
    """Requests per second by target and scheduler."""
    found = {}
    for scheduler in SCHEDULERS:
        tried = cache(partial(trials, plan, trace, scheduler))
        for name, (target, budget) in TARGETS.items():
            cuts = scheduler == "Sarathi-Serve"  # the others are the same under both targets
            found[name, scheduler] = capacity(tried(budget if cuts else None), target)
    return found


def run(plan: StudyPlan) -> Study:
    """Run three schedulers on two traces with two targets."""
    rows = []
    for trace in TRACES:
        found = capacities(plan, trace)
        for name, scheduler in found:
            ours, theirs = found[name, "Sarathi-Serve"], found[name, scheduler]
            times = ours / theirs if theirs and scheduler != "Sarathi-Serve" else None
            rows.append([trace, name, scheduler, theirs, times, PAPER.get((name, scheduler))])
    rows.sort(key=lambda row: (TRACES.index(row[0]), list(TARGETS).index(row[1])))
    title = f"Capacity\n{runs_of(plan)}"
    return Study("capacity", title, COLUMNS, rows, DIFFERS)
