"""`pdm run bench-throughput --preset chunked-prefill`: the same batch for every size, and exact latencies."""

import json
from types import SimpleNamespace

import pytest

from benchmarks import chunked_prefill
from benchmarks import throughput as command
from benchmarks.chunked_prefill import POLICIES, SweepPlan, behind_a_long_one, measure
from benchmarks.chunked_prefill_report import policy_targets, sweep_targets
from tiny_llm_course.trace import chunk_sweep
from tiny_llm_course.trace.chunk_sweep import ADAPTIVE, figures_of, sweep
from tiny_llm_course.trace.serve import Serving, serve
from tiny_llm_course.trace.simulation.simulated_model import SimulatedModel
from tiny_llm_course.trace.workload import LONG, SHORT, Workload, mixed, prompt_of
from tiny_llm_course.trace.workload import decode_heavy as heavy
from tiny_llm_engine.machine.installation import installed_backends
from tiny_llm_engine.solutions.solution import resolve_serving

NAMES = resolve_serving("ref")
ENGINES = "Week 2, chunks", "Week 3, budget"


def paced() -> Serving:
    """A chunk of n tokens takes n seconds, a decode step one."""
    model = SimulatedModel(max_model_len=4096)
    return Serving(NAMES, model, clock=model.clock)


def virtual(workload: Workload, step: int | None, **options) -> dict:
    return figures_of(serve(paced(), workload, step, **options).trace(), workload)


# ---- one run, on a clock that is exact


@pytest.mark.parametrize(("step", "stalls"), [(32, 0), (128, 0), (512, 12), (None, 15)])
def test_a_long_prompt_among_four_decodes(step, stalls):
    """It arrives in the same state of the batch whatever the chunk; the gap is one chunk and one decode step."""
    figures = virtual(heavy(2048), step)
    chunk = step or 2048
    assert figures["stall_steps"] == stalls
    assert figures["longest_gap"] == figures["tbt_p99"] == chunk + 1, "the prompt arrived when nobody decoded"
    # It arrives as a decode step begins; then its chunks, with a decode step between each two of them.
    assert figures["ttft_long"] == [1 + 2048 + (2048 // chunk - 1)] and figures["ttft_short"] == []
    assert figures["tbt_p50"] == (33 if step == 32 else 1), "most gaps are not those of the prompt"


def test_the_policies_behind_a_long_prompt():
    """Queued at once: pausing computes 3, 4 and 5 tokens first, with a decode step before the second and the third."""
    queued, arriving = (behind_a_long_one(2048, 128, q) for q in (True, False))
    in_order = virtual(queued, 128)
    assert in_order["ttft_long"] == [2048] and in_order["ttft_short"] == [2052, 2057, 2063]
    pausing = virtual(queued, 128, pause_prefill=True)
    assert pausing["ttft_short"] == [3, 8, 14] and pausing["ttft_long"][0] > 2048
    # From the second chunk on: that chunk is computed to its end.
    pausing = virtual(arriving, 128, pause_prefill=True)
    assert pausing["ttft_short"] == [131, 136, 142]
    assert virtual(arriving, 128)["ttft_short"] == [1924, 1929, 1935]
    whole = behind_a_long_one(2048, None, queued=False)
    assert virtual(whole, None)["ttft_short"] == [2052, 2057, 2063], "without chunks there is no second one"


def test_the_mixed_workload_is_that_of_the_public_chapter():
    """Three long prompts and ten short ones, all there at the start; the prompts alone take a second for each token."""
    figures = virtual(mixed(256), 128)
    assert [spec.kind for spec in mixed().requests] == [LONG] * 3 + [SHORT] * 10 and mixed().batch_size == 5
    assert (len(figures["ttft_long"]), len(figures["ttft_short"])) == (3, 10)
    assert figures["total"] > 3 * 256 + 10 * 8 and {spec.arrives for spec in mixed().requests} == {None}
    assert prompt_of(5, 11, 0) != prompt_of(5, 11, 1) and set(prompt_of(200, 11)) == set(range(11))


# ---- turns


def test_every_candidate_takes_its_turn_and_the_first_run_is_not_counted(monkeypatch):
    ran = []

    def served(serving, workload, step, **options):
        ran.append(step)
        return SimpleNamespace(trace=lambda: {"n": len(ran)}, metrics={"total_ms": 1.0})

    for module in (chunk_sweep, chunked_prefill):
        monkeypatch.setattr(module, "serve", served)
        monkeypatch.setattr(module, "figures_of", lambda trace, workload: trace)
    found = sweep(paced(), mixed(9), (32, 128, None), 2, lambda text: None)
    assert ran == [32, 128, None, 32, 128, None, 128, None, 32]
    assert [run["n"] for run in found["runs"]["128"]] == [5, 7], "the run before the rounds was counted"
    assert [row["step"] for row in found["rows"]] == [32, 128, None]
    ran.clear()
    plan = SweepPlan("m", rounds=2, long_tokens=300)
    found = chunked_prefill._policies(plan, paced(), True, lambda text: None)
    assert ran == [128, None, 128, None, 128, 128, 128, 128, None], "-1, 0, 1: each round begins with another"
    assert [[run["n"] for run in runs] for runs in found["runs"].values()] == [[4, 9], [5, 7], [6, 8]]


@pytest.mark.parametrize("hybrid", [(), (64, 128)])
def test_everything_is_measured_and_every_run_is_told_before_it_begins(hybrid, monkeypatch):
    """Week 3's engine is played by Week 2's with chunks of its budget."""
    told, sizes = [], {"mixed_tokens": 300, "long_tokens": 600, "rounds": 2, "hybrid": hybrid}

    def played(budget, workload):
        return serve(paced(), workload, budget).trace()

    monkeypatch.setattr(chunked_prefill, "trace_of_run", played)
    plan = SweepPlan("paced", steps=(128, ADAPTIVE, None), **sizes)
    found = measure(plan, paced(), "none", "cpu", told.append, lambda budget, workload: budget)
    assert len(told) == plan.number_of_runs and json.loads(json.dumps(found)) == found
    cases = {part: [case["name"] for case in found[part]] for part in ("sweeps", "policies", "engines")}
    assert cases["sweeps"] == ["mixed", "decode-heavy"] and cases["policies"] == ["queued", "arriving"]
    assert cases["engines"] == (["mixed", "decode-heavy", "queued"] if hybrid else [])
    for case in (case for part in cases for case in found[part]):
        assert {len(runs) for runs in case["runs"].values()} == {2}
    assert list(found["policies"][0]["runs"]) == list(POLICIES)
    gap = {name: runs[0]["longest_gap"] for name, runs in found["sweeps"][1]["runs"].items()}
    assert list(gap) == ["128", "adaptive", "none"] and (gap["128"], gap["none"]) == (129, 601)
    assert [row["step"] for row in found["sweeps"][1]["rows"]] == [128, "adaptive", None]
    assert found["sweeps"][1]["rows"][0]["gap_won"] == pytest.approx(1 - 129 / 601)
    for case in found["engines"][1:2]:
        gaps = {name: {run["longest_gap"] for run in runs} for name, runs in case["runs"].items()}
        week2, week3 = ({f"{name} of {n}": {n + 1} for n in hybrid} for name in ENGINES)
        assert gaps == {"Week 2, whole prompts": {601}, **week2, **week3}


# ---- the command


def test_the_command_measures_both_engines_on_real_models(bench, monkeypatch):
    monkeypatch.setattr(chunked_prefill, "decode_heavy", lambda tokens: heavy(tokens, answer=24))
    monkeypatch.setattr(chunked_prefill, "mixed", lambda tokens: mixed(tokens, answer=2))
    options = f"--backend {installed_backends()[-1]} --device cpu --threads 1 --rounds 1"
    sizes = "--steps 32 --hybrid 16 --mixed-tokens 40 --long-tokens 64 --config tiny-qwen3 --layers 1"
    out, found = bench(command.main, "--preset chunked-prefill", options, sizes)
    assert out.startswith("tiny-qwen3, 1 layer, random weights, float32, ")
    assert list(found["sweeps"][0]["runs"]) == ["32", "none"], "what all are compared with was not measured"
    assert list(found["engines"][1]["runs"])[1:] == [f"{name} of 16" for name in ENGINES]
    _, week2, week3 = (runs[0] for runs in found["engines"][1]["runs"].values())
    assert week3["stall_steps"] == week2["stall_steps"] == 0 and len(week3["ttft_long"]) == 1
    assert 0 < week3["tbt_p50"] <= week3["longest_gap"] < week3["total"]


def test_targets_are_met_or_missed_by_the_medians():
    """At 128 the gap is 8 × lower, p99 4 × lower and the total 20 % longer; pausing is 25 × sooner, and 5 ×."""

    def run(gap=2.0, p99=1.0, total=10.0, short=()) -> dict:
        return {"longest_gap": gap, "tbt_p99": p99, "total": total, "ttft_short": list(short)}

    at_128 = [run(0.25, 0.25, total) for total in (11, 12, 40)]
    runs = {"128": at_128, "none": [run(gap) for gap in (1, 2, 3)]}
    sweep = sweep_targets({"name": "decode-heavy", "runs": runs})
    found = [(text.rpartition(": ")[2], is_met) for text, is_met in sweep]
    assert found == [("8.0 ×", True), ("4.0 ×", False), ("+20 % at chunk 128", False)]
    for name, middle, factor in (("queued", 0.16, "25.0 ×"), ("arriving", 0.8, "5.0 ×")):
        shorts = {"unchunked": (1.0, 2.0, 9.0), "in order": (4.0,) * 3, "pausing": (0.1, middle, 1)}
        runs = {policy: [run(short=times)] for policy, times in shorts.items()}
        [(text, is_met)] = policy_targets({"name": name, "runs": runs})
        assert f"{factor} (the first of them 40 ×, the last 4 ×)" in text and is_met == (name == "queued")
