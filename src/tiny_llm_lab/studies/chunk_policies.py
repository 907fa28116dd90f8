"""Who goes first where there are chunks, and chunks that shrink with the load."""

from typing import Any

from tiny_llm_engine.solutions.solution_types import ServingPackage

from .served import LATENCIES, StudyPlan, latencies_of_seeds, medians, options_of, runs_of
from .study import Study

TRACE = "openchat"
RATE = 1.0
SIZES = (512, 2048, 8192)
RATES = (0.5, 0.8, 1.0, 1.2)
BUDGETS = (512, 1024, 2048)
TILE = 128  # tokens


def chunks_first(names: ServingPackage) -> type:
    """A scheduler whose step has chunks while any prompt waits, and decodes only then: SGLang's default."""

    class ChunksFirst(names.HybridScheduler):
        def plan_step(self, plan: list[Any]) -> None:
            self.plan_prompts(plan)
            if not plan:
                self.plan_decodes(plan)

    return ChunksFirst


def figures(plan: StudyPlan, rate: float, budget: int, **others: Any) -> list[float]:
    """The latencies of Sarathi-Serve's scheduler with these options, in seconds."""
    options = options_of("Sarathi-Serve", TRACE, budget) | others
    found = latencies_of_seeds(plan, TRACE, rate, **options)
    return medians(found, *LATENCIES)


def sglang(plan: StudyPlan) -> Study:
    """Run chunks in steps of their own, which go first, against chunks beside decodes."""
    kinds = {"chunks first": {"policy": chunks_first(plan.names)}, "mixed": {}}
    rows = [
        [size, name, *figures(plan, RATE, size, **options)]
        for size in SIZES
        for name, options in kinds.items()
    ]
    return Study(
        "sglang",
        f"Chunks first or mixed, {TRACE} at {RATE:g} req/s, seconds\n{runs_of(plan)}",
        ("chunk", "steps", *LATENCIES),
        rows,
        (
            "Chunks first is SGLang's default, mixed its --enable-mixed-chunk, and what vLLM and Sarathi-Serve do.",
            "The lecture has a slide of a test on SGLang. It is a picture, so no figure of it can be compared.",
        ),
    )


def load(plan: StudyPlan) -> Study:
    """Run fixed budgets, and one that gives prompts the share of the idle slots, by the rate of requests."""
    rows = []
    for rate in RATES:
        rows += [[rate, f"{budget:,}", *figures(plan, rate, budget)] for budget in BUDGETS]
        largest = BUDGETS[-1]
        chunker = plan.names.LoadChunker(range(TILE, largest - TILE + 1, TILE))
        rows.append([rate, f"{largest:,}, by load", *figures(plan, rate, largest, chunker=chunker)])
    return Study(
        "load",
        f"Chunks by load, {TRACE}, seconds\n{runs_of(plan)}",
        ("req/s", "budget", *LATENCIES),
        rows,
        (
            "By load: chunks get the share of the budget that is the share of the 128 slots which do not decode.",
        ),
    )
