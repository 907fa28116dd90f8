"""The trade-off of the token budget: time to first token against time between tokens."""

from statistics import median

from .served import StudyPlan, latencies_of_seeds, options_of, runs_of
from .study import Chart, Curve, Study

TRACE, RATE = "openchat", 1.0
BUDGETS = (128, 256, 512, 1024, 2048, 4096, 8192)
COLUMNS = ("budget", "P50 TTFT", "P99 TTFT", "P50 TBT", "P99 TBT", "longest gap")
DIFFERS = (
    "The paper uses 512 for strict targets and 2,048 for relaxed ones; it has no table of this sweep.",
)


def run(plan: StudyPlan) -> Study:
    """Run the same requests under each budget."""
    rows = []
    for budget in BUDGETS:
        found = latencies_of_seeds(plan, TRACE, RATE, **options_of("Sarathi-Serve", TRACE, budget))
        figures = [
            (each.ttft(50), each.ttft(99), each.tbt(50), each.tbt(99), each.longest_gap) for each in found
        ]
        rows.append([budget, *map(median, zip(*figures, strict=True))])
    title = f"Token budget, {TRACE} at {RATE:g} req/s, seconds\n{runs_of(plan)}"
    curves = [
        Curve(name, [(row[0], row[column]) for row in rows])
        for name, column in (("P50 TTFT", 1), ("P99 TBT", 4))
    ]
    return Study(
        "budget",
        title,
        COLUMNS,
        rows,
        DIFFERS,
        Chart("tokens of a step", "seconds", curves, log_x=True, log_y=True),
    )
