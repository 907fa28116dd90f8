"""The cost of a scheduler as a table: milliseconds per step, by how many requests wait."""

import statistics
from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Group

from tiny_llm_course.trace.text import counted

from .report import Report, header, noise, results_table, targets

LIMIT, FLAT = 0.5e-3, 1.5  # seconds per step; how many times the shortest queue's the longest one's may be


def by_scheduler(result: Mapping[str, Any]) -> dict[str, list[Mapping]]:
    """The cases of each scheduler, the shortest queue first."""
    found: dict[str, list[Mapping]] = {}
    for case in sorted(result["cases"], key=lambda case: case["waiting"]):
        found.setdefault(case["scheduler"], []).append(case)
    return found


def growth(cases: list[Mapping]) -> float:
    """The factor by which a step takes longer with the longest queue than with the shortest."""
    return statistics.median(cases[-1]["mean"]) / statistics.median(cases[0]["mean"])


def scheduler_targets(result: Mapping[str, Any]) -> Iterator[tuple[str, bool]]:
    """The targets: below half a millisecond with the longest queue, and as long as with the shortest, but for noise."""
    cases = by_scheduler(result)
    slowest = max(statistics.median(case["mean"]) for of_name in cases.values() for case in of_name)
    yield f"below {1000 * LIMIT} ms per step: at most {1000 * slowest:.3f} ms", slowest < LIMIT
    steepest = max(map(growth, cases.values()))
    few, many = result["plan"]["waiting"][0], result["plan"]["waiting"][-1]
    yield f"flat from {few:,} to {many:,} waiting (below {FLAT} ×): at most {steepest:.2f} ×", steepest < FLAT


def report(result: Mapping[str, Any]) -> Report:
    """A row per scheduler: the mean of a step in the median round, and how it grows; then the targets."""
    plan = result["plan"]
    rows = (
        (
            name,
            *(f"{1000 * statistics.median(case['mean']):.3f}" for case in cases),
            f"{growth(cases):.2f} ×",
            f"{1000 * statistics.median(cases[-1]['p99']):.3f}",
            noise(cases[-1]["mean"]),
        )
        for name, cases in by_scheduler(result).items()
    )
    prompts = ", ".join(map(str, plan["prompts"]))
    waiting = [f"{number:,}" for number in plan["waiting"]]
    yield header(result, "everything in a step but the model", counted(plan["steps"], "step"))
    yield (
        f"{plan['slots']} slots, chunks of {plan['chunk']}, prompts of {prompts} tokens in turns,\n"
        f"{plan['answer']} tokens each. Processor time: the mean of a step in the median round;\n"
        "p99 and spread are those of the longest queue."
    )
    table = results_table(("ms per step, waiting:", *waiting, "growth", "p99", "spread"), rows)
    yield Group(table, targets(scheduler_targets(result)))
