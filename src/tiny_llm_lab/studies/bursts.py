"""The same requests as a Poisson process and in bursts."""

from statistics import median

from .served import StudyPlan, latencies_of_seeds, options_of, runs_of
from .study import Study

TRACE, RATE = "azure-code", 1.0
VARIATIONS = {"Poisson": 1.0, "bursts": 13.0}  # the second is that of the trace itself
SCHEDULERS = ("Orca", "vLLM", "Sarathi-Serve")
COLUMNS = ("arrivals", "scheduler", "P50 TTFT", "P99 TTFT", "P99 TBT", "longest gap")


def run(plan: StudyPlan) -> Study:
    """Run three schedulers under both kinds of arrivals, at the same mean rate."""
    rows = []
    for name, variation in VARIATIONS.items():
        for scheduler in SCHEDULERS:
            options = options_of(scheduler, TRACE)
            found = latencies_of_seeds(plan, TRACE, RATE, variation=variation, **options)
            figures = [(each.ttft(50), each.ttft(99), each.tbt(99), each.longest_gap) for each in found]
            rows.append([name, scheduler, *map(median, zip(*figures, strict=True))])
    title = f"Bursts, {TRACE} at {RATE:g} req/s on average, seconds\n{runs_of(plan)}"
    return Study("bursts", title, COLUMNS, rows, ("The paper's arrivals are Poisson in all experiments.",))
