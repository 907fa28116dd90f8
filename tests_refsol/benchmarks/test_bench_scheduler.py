"""`pdm run bench-scheduler`: as many wait in every step, only the steps are timed, and the table is right."""

import io
import json
from collections import Counter

import pytest
from rich.console import Console

from benchmarks import reports
from benchmarks import scheduler as command
from benchmarks.scheduler import PROMPTS, SCHEDULERS, SLOTS, Filled, SchedulerPlan, measure
from benchmarks.scheduler_report import growth, targets
from book.tools import screens
from tiny_llm_kit.engine.solution import resolve_serving
from tiny_llm_kit.trace import provenance

NAMES = resolve_serving("ref")


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_the_same_requests_wait_in_every_step(scheduler):
    """However long the queue: the same lengths and classes of prompts, and full slots."""
    filled = Filled(NAMES, *SCHEDULERS[scheduler], waiting=30)
    started = Counter()
    for _ in range(60):
        filled.sample(1)
        assert abs(len(filled.scheduler.turns.queue) - 30) <= 2, "the queue has drained, or has grown"
        started.update(len(request.prompt_tokens) for request in filled.scheduler.batch.slots if request)
    assert len(filled.scheduler.batch.running) > 0
    if "pausing" not in scheduler:
        assert set(started) == set(PROMPTS), "some lengths are never served"


def test_batch_requests_are_there_for_the_classes():
    filled = Filled(NAMES, "PriorityScheduler", {}, waiting=30)
    assert (
        len(filled.scheduler.turns.queue.batch) == 10 and len(filled.scheduler.turns.queue.interactive) == 20
    )


def test_only_the_steps_are_timed():
    """The clock ticks once a reading: a step between two readings takes one, whatever is refilled behind it."""
    ticks = iter(range(10_000))
    filled = Filled(NAMES, "FifoQueue", {}, waiting=5, clock=lambda: next(ticks))
    assert filled.sample(20) == [1] * 20
    assert next(ticks) == 40, "the clock was read for something else"


def scripted(slow: float = 0.0004) -> dict:
    cases = [
        {"scheduler": "one", "waiting": 1000, "mean": [0.0002, 0.0003, 0.0002], "p99": [0.001] * 3},
        {"scheduler": "one", "waiting": 10, "mean": [0.0001, 0.0002, 0.0009], "p99": [0.002] * 3},
        {"scheduler": "two", "waiting": 10, "mean": [slow] * 3, "p99": [0.002] * 3},
        {"scheduler": "two", "waiting": 1000, "mean": [slow] * 3, "p99": [0.003] * 3},
    ]
    plan = {**SchedulerPlan((10, 1000)).__dict__, "slots": SLOTS, "chunk": 128, "prompts": [1], "answer": 2}
    found = provenance.provenance("cpu")
    return {"kind": "scheduler", "backend": "no model", "plan": plan, "provenance": found, "cases": cases}


def test_the_table_has_medians_the_growth_and_the_worst_of_the_longest_queue():
    console = Console(width=88, file=io.StringIO())
    reports.show(console, scripted())
    lines = [" ".join(line.split()) for line in console.file.getvalue().splitlines()]
    assert "ms per step, waiting: 10 1,000 growth p99 spread" in lines
    assert "one 0.200 0.200 1.00 × 1.000 ±12 %" in lines
    assert "two 0.400 0.400 1.00 × 3.000 ±0 %" in lines
    assert growth([{"mean": [1.0, 2.0, 9.0]}, {"mean": [6.0]}]) == 3.0


def test_the_targets_are_below_half_a_millisecond_and_flat():
    assert [met for _, met in targets(scripted())] == [True, True]
    assert [met for _, met in targets(scripted(slow=0.0006))] == [False, True]
    steep = scripted()
    steep["cases"][0]["mean"] = [0.0004]
    assert [met for _, met in targets(steep)] == [True, False]
    assert "at most 2.00 ×" in [says for says, _ in targets(steep)][1]


def test_every_scheduler_is_measured_with_every_queue():
    result = measure(SchedulerPlan((3, 40), steps=4, rounds=2), NAMES, lambda what, total: None)
    found = [(case["scheduler"], case["waiting"]) for case in result["cases"]]
    assert found == [(name, waiting) for name in SCHEDULERS for waiting in (3, 40)]
    assert all(len(case["mean"]) == len(case["p99"]) == 2 for case in result["cases"])
    assert json.loads(json.dumps(result)) == result


def test_the_command_prints_its_table_and_keeps_a_sealed_result(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(provenance, "RESULTS", tmp_path)
    monkeypatch.setattr(screens, "RESULTS", tmp_path)
    command.main(["--waiting", "20", "5", "--steps", "3", "--rounds", "1", "--save", "s"])
    out = capsys.readouterr().out
    assert "PriorityScheduler, pausing" in out and "kept: s.json" in out
    kept = json.loads((tmp_path / "s.json").read_text(encoding="utf-8"))
    assert provenance.is_sealed(kept) and kept["plan"]["waiting"] == [5, 20]
    [(name, page)] = screens.benchmark_screens()
    assert name == "benchmark-s" and "bench-scheduler --waiting 20 5" in page
