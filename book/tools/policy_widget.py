"""The live widget of Day 3.5 in Python: the timelines of all policies, compiled to a table, and a static picture.

The schedulers of the course run once here, on a virtual clock, for every position of the sliders. The page only draws.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

from tiny_llm_course.trace.incidents.incident import IncidentCase, Sent, group
from tiny_llm_course.trace.incidents.incident_run import IncidentRun
from tiny_llm_engine.solutions.solution import resolve_serving
from tiny_llm_engine.solutions.solution_types import Event, ServingPackage

from .widget import scripts

BUDGETS = (128, 256, 512, 1024, 2048)  # tokens of a step
TARGETS = (20, 30, 50, 100, 200)  # ms between two tokens
LOADS = (0, 4, 8, 16)  # short prompts per second
FROM, UNTIL = 300, 1500  # ms between which they arrive
# The slider that moves a policy; the load moves them all.
OF_BUDGET, OF_TARGET = ("chunks-only", "sarathi", "paced"), ("slack",)
START = {"budget": 512, "target": 50, "load": 4}
WIDTH = 620


def policy_table() -> dict[str, Any]:
    """All timelines: {"budgets", "targets", "loads", "start", "runs": policy -> by load -> by setting}.

    A policy that no slider but the load moves has one setting.
    """
    names = resolve_serving("ref")
    runs = {policy: [_settings(names, policy, load) for load in LOADS] for policy in names.POLICIES}
    return {"budgets": BUDGETS, "targets": TARGETS, "loads": LOADS, "start": START, "runs": runs}


def _settings(names: ServingPackage, policy: str, load: int) -> list[dict[str, Any]]:
    if policy in OF_BUDGET:
        return [timeline(names, policy, load, budget=budget) for budget in BUDGETS]
    if policy in OF_TARGET:
        return [timeline(names, policy, load, budget=BUDGETS[-1], target=target) for target in TARGETS]
    return [timeline(names, policy, load)]


def timeline(
    names: ServingPackage,
    policy: str,
    load: int,
    budget: int = START["budget"],
    target: float = START["target"],
) -> dict[str, Any]:
    """One run: its steps in groups of equal ones, and its figures in ms.

    A group is [times, ms of each, rows that decode, tokens of the long prompt, of the others].
    """
    steps: list[Event] = []
    case = IncidentCase(tuple(_requests(load)), (), target=target)
    run = IncidentRun(names, policy, case, max_num_batched_tokens=budget, on_event=steps.append)
    first_short = round(run.ttft("s*")) if load else None
    figures = {"gap": round(run.gap("A*")), "long": round(run.ttft("L")), "short": first_short}
    figures["answer"] = round(run.end("s0")) if load else None
    groups = list(_grouped(step for step in steps if step.kind == "step"))
    return {"steps": groups, "figures": figures | {"end": round(run.end("*"))}}


def _requests(load: int) -> Iterator[Sent]:
    yield from group(3, Sent("A", 0, 16, 90))
    yield Sent("L", 200, 6_000, 10)
    if load:
        short = group((UNTIL - FROM) * load // 1000, Sent("s", FROM, 100, 10), every=1000 / load)
        # Answers of unequal length: a static batch delivers the first one with the last.
        yield from (replace(one, answer=40 if number % 4 == 3 else 10) for number, one in enumerate(short))


def _grouped(steps: Iterator[Event]) -> Iterator[list[float]]:
    """Groups of equal steps; a pause without work is a step of nothing."""
    now, last = 0.0, [0, 0.0, 0, 0, 0]
    for step in steps:
        assert step.start is not None
        pause = round(1000 * (step.start - now), 1)
        for one in ([pause, 0, 0, 0],) * bool(pause) + (_step(step),):
            if last[1:] == one:
                last[0] += 1
            else:
                if last[0]:
                    yield last
                last = [1, *one]
        now = step.time
    yield last


def _step(step: Event) -> list[float]:
    chunks = [part for part in step.parts if part.kind == "chunk"]
    long = sum(part.tokens for part in chunks if part.requests[0].request_id == 3)
    decodes = sum(part.tokens for part in step.parts if part.kind == "decode")
    return [round(1000 * step.seconds, 1), decodes, long, sum(part.tokens for part in chunks) - long]


@cache
def _table() -> str:
    return json.dumps(policy_table(), separators=(",", ":"))


def data() -> str:
    """The element of the page that holds the table."""
    return f'<script type="application/json">{_table()}</script>'


def picture() -> str:
    """The SVG at the sliders' first positions, for readers without JavaScript."""
    with scripts() as run:
        return run(f"policiesDrawing.draw({_table()}, {json.dumps(START)}, {WIDTH}, 'policies-widget')")
