"""The paper's throughput-latency figure: the capacity of a scheduler by its target for the time between tokens."""

from .capacity import capacity, trials
from .served import SEQS, StudyPlan, runs_of
from .study import Chart, Curve, Study

TRACE = "openchat"
TARGETS = (0.1, 0.2, 0.5, 1.0, 2.0)  # seconds; the paper has five, of which its text names 0.1 and 1
# The paper's five: name -> scheduler, budget, requests at a time.
SCHEDULERS = {
    "vLLM 32": ("vLLM", None, 32),
    "vLLM 64": ("vLLM", None, 64),
    "vLLM 128": ("vLLM", None, SEQS),
    "512 tokens": ("Sarathi-Serve", 512, SEQS),
    "2,048 tokens": ("Sarathi-Serve", 2048, SEQS),
}
PAPER = {("mistral-7b", 0.1): 3.5, ("yi-34b", 1.0): 1.65}  # the better budget, as a multiple of vLLM


def run(plan: StudyPlan) -> Study:
    """Search the capacity of five schedulers under five targets."""
    tried = {
        name: trials(plan, TRACE, scheduler, budget, max_num_seqs=seqs)
        for name, (scheduler, budget, seqs) in SCHEDULERS.items()
    }
    found = {target: {name: capacity(trial, target) for name, trial in tried.items()} for target in TARGETS}
    rows = [row_of(plan.hardware, target, capacities) for target, capacities in found.items()]
    curves = [
        Curve(name, [(target, capacities[name]) for target, capacities in found.items()])
        for name in SCHEDULERS
    ]
    return Study(
        "targets",
        f"Capacity by target, {TRACE}, requests per second\n{runs_of(plan)}",
        ("P99 TBT s", *SCHEDULERS, "chunks are ×", "paper, ×"),
        rows,
        (
            "The paper's curves are in a figure alone. Its text gives 3.5 to Mistral-7B, and the caption to Yi-34B.",
            "The last two columns compare the better budget with the best vLLM.",
        ),
        Chart("P99 of the time between tokens, seconds", "requests per second", curves, log_x=True),
    )


def row_of(hardware: str, target: float, found: dict[str, float]) -> list[float | None]:
    """A row of the table: capacities, and the better budget against the best vLLM, here and in the paper."""
    whole = max(rate for name, rate in found.items() if name.startswith("vLLM"))
    chunks = max(rate for name, rate in found.items() if not name.startswith("vLLM"))
    times = chunks / whole if whole and chunks else None
    return [target, *found.values(), times, PAPER.get((hardware, target))]
