"""How many requests per second a scheduler serves within a target (Sarathi-Serve, its capacity search)."""

from collections.abc import Callable
from functools import cache, partial

from .hardware import HARDWARE
from .served import StudyPlan, latencies_of_seeds, medians, options_of, runs_of
from .study import Study

DELAY = 2.0  # seconds: what half of the requests may wait for their admission
SCHEDULERS = ("Orca", "vLLM", "Sarathi-Serve")
TRACES = ("openchat", "arxiv")
LOWEST, STEP, STEPS = 0.05, 1.05, 120  # the rates: 0.05 to 17 requests per second, in steps of 5 %
# Sarathi-Serve's capacity as a multiple, on openchat: model -> target, scheduler. Rates are in figures alone. For
# Mistral-7B it is the largest of all, without a target.
PAPER = {
    "yi-34b": {("strict", "vLLM"): 3.7, ("strict", "Orca"): 4.0},
    "yi-34b-steps": {("strict", "vLLM"): 3.7, ("strict", "Orca"): 4.0},
    "mistral-7b": {("strict", "vLLM"): 2.6},
    "llama2-70b": {("strict", "vLLM"): 4.3, ("strict", "Orca"): 6.3},
    "falcon-180b": {("strict", "vLLM"): 3.6, ("relaxed", "vLLM"): 1.48},
}
COLUMNS = ("trace", "target", "scheduler", "req/s", "Sarathi-Serve is ×", "paper, up to ×")
DIFFERS = (
    "The paper's rates are in figures alone; its text has the largest ratios, which are those of openchat.",
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
    plan: StudyPlan, trace: str, scheduler: str, budget: int | None, **others: int
) -> Callable[[float], tuple[float, float]]:
    """A function from rate to P99 TBT and median delay, in seconds.

    Each rate is served once, for all targets. `others` are further options of the scheduler.
    """
    options = options_of(scheduler, trace, budget or 512, HARDWARE[plan.hardware].orca_seqs) | others

    @cache
    def trial(rate: float) -> tuple[float, float]:
        found = latencies_of_seeds(plan, trace, rate, **options)
        tbt, delay = medians(found, "P99 TBT", "P50 delay")
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
        for name, (target, budget) in HARDWARE[plan.hardware].targets.items():
            cuts = scheduler == "Sarathi-Serve"  # the others are the same under both targets
            found[name, scheduler] = capacity(tried(budget if cuts else None), target)
    return found


def run(plan: StudyPlan) -> Study:
    """Run three schedulers on two traces with two targets.

    Raises:
        ValueError: the paper has no targets for this model.
    """
    if plan.hardware not in PAPER:
        raise ValueError(
            f"--hardware {plan.hardware}: the paper has no targets for it; give {', '.join(PAPER)}"
        )
    rows = []
    for trace in TRACES:
        found = capacities(plan, trace)
        for name, scheduler in found:
            ours, theirs = found[name, "Sarathi-Serve"], found[name, scheduler]
            times = ours / theirs if theirs and scheduler != "Sarathi-Serve" else None
            published = PAPER[plan.hardware].get((name, scheduler)) if trace == "openchat" else None
            rows.append([trace, name, scheduler, theirs, times, published])
    targets = list(HARDWARE[plan.hardware].targets)
    rows.sort(key=lambda row: (TRACES.index(row[0]), targets.index(row[1])))
    title = f"Capacity\n{runs_of(plan)}"
    return Study("capacity", title, COLUMNS, rows, DIFFERS)
