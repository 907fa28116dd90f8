"""Hybrid batches alone, chunks alone, and both together (the ablation of Sarathi-Serve)."""

from statistics import median

from .served import StudyPlan, latencies_of_seeds, median_tbt, options_of, runs_of
from .study import Study

# (trace, requests per second in the artefact's script) -> scheduler -> P50 TTFT, P99 TBT, seconds, in the paper.
PAPER = {
    ("openchat", 1.0): {
        "hybrid-batching-only": (0.53, 0.68),
        "chunked-prefills-only": (1.04, 0.17),
        "Sarathi-Serve": (0.76, 0.14),
    },
    ("arxiv", 0.5): {
        "hybrid-batching-only": (3.78, 1.38),
        "chunked-prefills-only": (5.38, 0.20),
        "Sarathi-Serve": (3.90, 0.17),
    },
}
COLUMNS = ("trace", "req/s", "scheduler", "P50 TTFT", "paper", "P99 TBT", "paper")
DIFFERS = (
    "The paper's text says budget 1,024; the artefact's script, which is followed here, says 512.",
    "Chunks only: the artefact alternates a step of chunks and one of decodes; here each step is both in turn.",
    "Lengths come from quantiles, and those of arxiv from three figures.",
    "By the artefact's own times for chunks of 512, 0.5 prompts of arxiv per second take 95 % of the time: a queue.",
)


def run(plan: StudyPlan) -> Study:
    """Run three schedulers on two traces, at the rates of the artefact."""
    rows = []
    for (trace, rate), schedulers in PAPER.items():
        for scheduler, (ttft, tbt) in schedulers.items():
            found = latencies_of_seeds(plan, trace, rate, **options_of(scheduler, trace))
            ours = [median(each.ttft(50) for each in found), median_tbt(found)]
            rows.append([trace, rate, scheduler, ours[0], ttft, ours[1], tbt])
    title = f"Ablation, seconds\n{runs_of(plan)}"
    return Study("ablation", title, COLUMNS, rows, DIFFERS)
