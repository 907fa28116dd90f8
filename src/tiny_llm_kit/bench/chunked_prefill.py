"""The benchmark of Day 2.7: the same requests with chunks of every size and with none: what is won, what is lost."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .provenance import provenance
from .serving_run import Serving, serve
from .workloads import Workload, behind_a_long_one, decode_heavy, mixed

Run = Callable[[], dict[str, Any]]
# Shown name -> (whether the prompt is chunked, options of the scheduler).
POLICIES = {
    "unchunked": (False, {}),
    "chunked, in order": (True, {}),
    "chunked, with pausing": (True, {"pause_prefill": True}),
}


@dataclass(frozen=True)
class Plan:
    """What to measure.

    Args:
        model: a name, for the table.
        steps: tokens of a chunk; None is the whole prompt.
        policy_step: the chunk with which the policies are compared.
        mixed_tokens, long_tokens: of the long prompts of the workloads.
        rounds: runs of each candidate, taken in turns.
        threads, dtype: with which the model runs.
    """

    model: str
    steps: tuple[int | None, ...] = (32, 128, 512, None)
    policy_step: int = 128
    mixed_tokens: int = 1024
    long_tokens: int = 2048
    rounds: int = 5
    threads: int = 1
    dtype: str = "float32"


def in_turns(runs: Mapping[str, Run], rounds: int, progress: Callable) -> dict[str, list[dict]]:
    """The figures of every candidate in every round; the order turns, and one run of each before is not counted."""
    figures: dict[str, list[dict]] = {name: [] for name in runs}
    for run in runs.values():
        run()
    names = list(runs)
    for number in progress(range(rounds)):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            figures[name].append(runs[name]())
    return figures


def measure(plan: Plan, serving: Serving, backend: str, device: str, progress: Callable) -> dict[str, Any]:
    """Every workload with every chunk size, then every policy. `progress(iterable, text)` shows how far it is."""
    before = provenance(device)
    sweeps = [
        _sweep(plan, serving, workload, progress)
        for workload in (mixed(plan.mixed_tokens), decode_heavy(plan.long_tokens))
    ]
    policies = [_policies(plan, serving, queued, progress) for queued in (True, False)]
    return {
        "kind": "chunked-prefill",
        "backend": backend,
        "plan": {**plan.__dict__, "steps": list(plan.steps)},
        "provenance": before,
        "sweeps": sweeps,
        "policies": policies,
    }


def _sweep(plan: Plan, serving: Serving, workload: Workload, progress: Callable) -> dict[str, Any]:
    runs = {
        shown(step): lambda step=step: serve(serving, workload, step) for step in dict.fromkeys(plan.steps)
    }
    figures = in_turns(runs, plan.rounds, lambda rounds: progress(rounds, workload.name))
    return {"name": workload.name, "says": workload.says, "runs": figures}


def _policies(plan: Plan, serving: Serving, queued: bool, progress: Callable) -> dict[str, Any]:
    runs = {}
    for name, (is_chunked, options) in POLICIES.items():
        step = plan.policy_step if is_chunked else None
        workload = behind_a_long_one(plan.long_tokens, step, queued)
        runs[name] = lambda w=workload, s=step, o=options: serve(serving, w, s, **o)
    figures = in_turns(runs, plan.rounds, lambda rounds: progress(rounds, workload.name))
    return {"name": workload.name, "says": workload.says, "runs": figures}


def shown(step: int | None) -> str:
    return "none" if step is None else str(step)
