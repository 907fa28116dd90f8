"""`pdm run bench-scheduler`: as many wait in every step, only the steps are timed, and all are measured."""

import json
from collections import Counter
from types import SimpleNamespace

import pytest

from benchmarks import scheduler as command
from benchmarks.scheduler import PROMPTS, SCHEDULERS, Filled, SchedulerPlan, measure
from benchmarks.scheduler_report import scheduler_targets
from tiny_llm_engine.solutions.solution import resolve_serving

NAMES = resolve_serving("ref")


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_the_same_requests_wait_in_every_step(scheduler):
    """However long the queue: the same lengths and classes of prompts, and full slots."""
    filled = Filled(NAMES, *SCHEDULERS[scheduler], waiting=30)
    started, queue = Counter(), filled.scheduler.turns.queue
    if scheduler == "PriorityScheduler":
        assert (len(queue.batch), len(queue.interactive)) == (10, 20)
    for _ in range(60):
        filled.sample(1)
        assert abs(len(queue) - 30) <= 2, "the queue has drained, or has grown"
        started.update(len(request.prompt_tokens) for request in filled.scheduler.batch.slots if request)
    assert len(filled.scheduler.batch.running) > 0
    if "pausing" not in scheduler:
        assert set(started) == set(PROMPTS), "some lengths are never served"


def test_only_the_steps_are_timed(monkeypatch):
    """The clock ticks once a reading: a step between two readings takes one, whatever is refilled behind it."""
    ticks = iter(range(10_000))
    monkeypatch.setattr(command, "time", SimpleNamespace(process_time=lambda: next(ticks)))
    assert Filled(NAMES, "FifoQueue", {}, waiting=5).sample(20) == [1] * 20
    assert next(ticks) == 40, "the clock was read for something else"


def test_every_scheduler_is_measured_with_every_queue():
    result = measure(SchedulerPlan((3, 40), steps=2, rounds=2), NAMES, lambda what, total: None)
    found = [(case["scheduler"], case["waiting"]) for case in result["cases"]]
    assert found == [(name, waiting) for name in SCHEDULERS for waiting in (3, 40)]
    assert all(len(case["mean"]) == len(case["p99"]) == 2 for case in result["cases"])
    assert json.loads(json.dumps(result)) == result


def test_targets_are_met_or_missed_by_the_medians():
    """Below half a millisecond with the longest queue, and at most half as long again as with the shortest."""

    def met(few: list[float], many: list[float]) -> list[bool]:
        means = {1000: many, 10: few}
        cases = [{"scheduler": "one", "waiting": n, "mean": mean} for n, mean in means.items()]
        return [is_met for _, is_met in scheduler_targets({"plan": {"waiting": (10, 1000)}, "cases": cases})]

    assert met([2e-4, 2e-4, 1e-5], [2e-4, 3e-4, 2e-4]) == [True, True]
    assert met([6e-4], [6e-4]) == [False, True] and met([2e-4], [4e-4]) == [True, False]
