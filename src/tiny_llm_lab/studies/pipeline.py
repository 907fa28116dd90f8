"""Pipeline bubbles of three schedulers, in virtual time.

There are as many micro-batches as stages, each with separate requests.
"""

from dataclasses import replace
from statistics import median

from tiny_llm_course.trace.pipeline.pipeline_run import KINDS, PipelineRun, kind_of
from tiny_llm_course.trace.pipeline.simulated_pipeline import STAGES, SimulatedPipeline, pass_in_turns
from tiny_llm_course.trace.simulation.step_cost import StepWork

from ..traffic import TRACES, traffic
from .hardware import HARDWARE
from .pipelined_serving import groups_of
from .served import StudyPlan, options_of, runs_of
from .study import Chart, Curve, Study

TRACE = "openchat"
ROUNDS = 50  # of a pair of micro-batches
SCHEDULERS = ("vLLM", "Orca", "Sarathi-Serve")
BUDGETS = (128, 256, 512, 1024, 2048, 4096, 8192)
COLUMNS = ("scheduler", "bubbles, %", *(f"{kind}, %" for kind in KINDS), "tokens/s")


def serve_saturated(plan: StudyPlan, scheduler: str, seed: int, budget: int = 512) -> PipelineRun:
    """Serve requests that are all there at the start, a group per stage, until the first group is served."""
    hardware, most = HARDWARE[plan.hardware], TRACES[TRACE].most
    pipeline = SimulatedPipeline(hardware.cost, STAGES)
    specs = [replace(spec, time=0.0) for spec in traffic(TRACE, 1.0, plan.requests, seed)]
    options = options_of(scheduler, TRACE, budget)
    groups = groups_of(plan.names, pipeline, specs, most, hardware.num_blocks, **options)
    while min(groups, key=lambda group: group.clock.now).advance():
        pass
    return pipeline.run


def shares(run: PipelineRun) -> list[float]:
    """Bubbles in per cent of the stages' time: all of them, and each kind."""
    bubbles = run.seconds_by_kind()
    total = run.worked + bubbles.total()
    return [100 * seconds / total for seconds in (bubbles.total(), *(bubbles[kind] for kind in KINDS))]


def figures_of(plan: StudyPlan, scheduler: str, budget: int = 512) -> list[float]:
    """Bubbles in per cent, see `shares`, and tokens per second; medians over the seeds."""
    found = [serve_saturated(plan, scheduler, seed, budget) for seed in plan.seeds]
    tokens = [sum(work.chunk_tokens + work.decodes for work in each.works) for each in found]
    figures = [(*shares(each), count / each.end) for each, count in zip(found, tokens, strict=True)]
    return [median(figure) for figure in zip(*figures, strict=True)]


def pairs_of_batches() -> dict[str, tuple[StepWork, StepWork]]:
    """Pairs of micro-batches that take turns, by name."""

    def prompt(tokens: int, decodes: int = 0, context: int = 2048) -> StepWork:
        return StepWork.of([(tokens, 0)], [context] * decodes)

    return {
        "prompts of 4,096 and 1,024": (prompt(4096), prompt(1024)),
        "a prompt of 4,096, and 32 decodes": (prompt(4096), prompt(0, 32)),
        "32 decodes at 512, and at 8,192": (prompt(0, 32, 512), prompt(0, 32, 8192)),
        "480 of a prompt and 32 decodes, twice": (prompt(480, 32), prompt(480, 32)),
    }


def bubbles(plan: StudyPlan) -> Study:
    """Measure each kind of bubble by itself: two micro-batches in turns."""
    cost, rows = HARDWARE[plan.hardware].cost, []
    for name, works in pairs_of_batches().items():
        rows.append([name, kind_of(*works), shares(pass_in_turns(cost, works * ROUNDS))[0]])
    return Study(
        "bubbles",
        f"Bubbles, {STAGES} stages\n{HARDWARE[plan.hardware].says}",
        ("micro-batches in turns", "kind", "bubbles, %"),
        rows,
        (
            "The paper names the kinds and gives one example: Falcon-180B, 1,150 ms beside 200 ms, a bubble of 950 ms.",
            "Each stage takes half of a step; passing activations on costs nothing.",
        ),
    )


def run(plan: StudyPlan) -> Study:
    """Run three schedulers with more requests than they can serve at once."""
    rows = [[scheduler, *figures_of(plan, scheduler)] for scheduler in SCHEDULERS]
    title = f"Pipeline, {STAGES} stages, {TRACE}, all requests at the start\n{runs_of(plan)}"
    return Study(
        "pipeline",
        title,
        COLUMNS,
        rows,
        (
            "The paper draws its bubbles, and has no table of them. Passing activations on costs nothing here.",
        ),
    )


def budgets(plan: StudyPlan) -> Study:
    """Run Sarathi-Serve under each token budget: a larger one makes micro-batches less equal."""
    rows = [[budget, *figures_of(plan, "Sarathi-Serve", budget)] for budget in BUDGETS]
    names = ("all bubbles", *KINDS)
    curves = [Curve(name, [(row[0], row[at]) for row in rows]) for at, name in enumerate(names, 1)]
    return Study(
        "bubble-budgets",
        f"Bubbles by token budget, {STAGES} stages, {TRACE}, all requests at the start\n{runs_of(plan)}",
        ("budget", *COLUMNS[1:]),
        rows,
        (
            "The paper states that budgets differ in their bubbles, and that this made it choose 1,536 for LLaMA2-70B.",
        ),
        Chart("tokens of a step", "% of the stages' time", curves, log_x=True),
    )
