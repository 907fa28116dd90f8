"""`pdm run bench-latency`: fair turns, engines on the same weights, the work of a call, and the roofs."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

from benchmarks import latency
from benchmarks.latency import LatencyPlan, engines, fastest_product, measure
from benchmarks.latency_report import points, work
from tiny_llm_engine.backends import samples
from tiny_llm_engine.machine.installation import installed_backends
from tiny_llm_engine.models.weights.random_weights import shape
from tiny_llm_engine.solutions.port import Port
from tiny_llm_extensions.profiling.kv_budget import kv_bytes_per_token

TINY = LatencyPlan(config="tiny-qwen3", layers=1, dtype="float32", threads=(1,), rounds=2, output_len=2)
BACKENDS, CACHES = installed_backends(), ("static", "dynamic")


def port_of(backend: str) -> Port:
    return Port("tiny_llm_ref", backend, "cpu", "float32")


def test_every_candidate_runs_once_a_round_and_the_order_turns():
    ran, ticks = [], iter(range(100))
    runs = {name: (lambda name=name: ran.append(name)) for name in "abc"}
    seconds = samples.interleave(runs, 3, warmup=1, clock=lambda: next(ticks))
    assert "".join(ran) == "abc" + "abc" + "bca" + "cab"
    assert seconds == {name: [1, 1, 1] for name in "abc"}
    assert samples.spread([1.0, 2.0, 3.0, 4.0, 5.0]) == pytest.approx(2 / 3) and samples.spread([7.0]) == 0
    assert samples.ratio([2.0, 8.0, 4.0], [1.0, 1.0, 9.0]) == 4, "the quotient of the medians"


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_case_is_measured_in_every_phase_with_every_number_of_threads(backend, quick_roofs):
    """Chunks by our plain engine alone, all of one number of threads in turns."""
    compare = ("transformers",) if backend == "torch" else ()
    plan = replace(TINY, quantization="4bit", enforce_eager=True, compare=compare, phase=latency.PHASES)
    plan = replace(plan, batch_size=(1, 3), input_len=(5, 40), threads=(1, 2))
    told = []
    result = measure(plan, port_of(backend), lambda *run: told.append(run))
    names = "phase", "threads", "rows", "context"
    cases = [tuple(map(case.get, names)) for case in result["cases"]]
    of_decode = [("decode", n, rows, size) for rows in (1, 3) for size in (5, 40) for n in (1, 2)]
    of_prefill = [("prefill", n, 1, size) for size in (5, 40) for n in (1, 2)]
    assert cases == of_decode + of_prefill + [("chunk", n, 1, size) for n in (1, 2) for size in (5, 40)]
    theirs = {f"{compare[0]} {cache}" for cache in CACHES} if compare else set()
    everybody = {"tiny-llm", "tiny-llm 4bit", "tiny-llm packed"} | theirs
    for case in result["cases"]:
        assert set(case["seconds"]) == ({"tiny-llm"} if case["phase"] == "chunk" else everybody)
        assert all(len(each) == 2 and min(each) > 0 for each in case["seconds"].values())
    assert len(told) == 14 and told[-1] == ("chunk, threads: 2", 14), "cases in turns, times threads"
    limits = {"bytes_per_second": 1e9, "operations_per_second": 2e9}
    assert result["roofs"] == {"1": limits, "2": limits} and quick_roofs == [256, 2048] * 2
    assert [point.tokens for point in points(result)] == [5, 40]
    assert result["weight_bytes"]["tiny-llm"] > result["weight_bytes"]["tiny-llm 4bit"]
    assert result["provenance"]["versions"] and json.loads(json.dumps(result)) == result


def test_chunks_of_one_size_are_timed_between_those_of_others(quick_roofs, monkeypatch):
    """They are compared with each other, so a slow minute must hit all of them."""
    ran = []

    def prefill(self, tokens, sample):
        ran.append((len(tokens), sample))

    monkeypatch.setattr(latency.Week2Calls, "prefill", prefill)
    measure(replace(TINY, phase=("chunk",), input_len=(1, 3)), port_of(BACKENDS[0]), lambda *_: None)
    assert ran == [(1, False), (3, False), (1, False), (3, False), (3, False), (1, False)]


@pytest.mark.parametrize("backend", BACKENDS)
def test_week_3s_engine_computes_what_week_2s_does(backend, monkeypatch):
    """A prompt, and decode steps of two rows that both hold it: the same tokens on the same weights."""
    port = port_of(backend)
    cast = engines(replace(TINY, enforce_eager=True, batch_size=(2,), input_len=(130,)), port)
    week2, week3 = cast["tiny-llm"], cast["tiny-llm packed"]
    prompt, cache = [7 * n % 3000 for n in range(130)], week2.runner.create_kv_cache(140)
    token = week2.runner.prefill(prompt, 0, cache, sample=True)
    assert week3._run([prompt, prompt], 0) == [token, token]
    following = week2.runner.prefill([token], 130, cache, sample=True)
    assert week3._run([[token], [token]], 130) == [following, following]
    ran = []
    monkeypatch.setattr(week3, "_run", lambda rows, context: ran.append((rows, context)) or [5, 6])
    week3.fill(2, 130, steps=2)
    week3.decode()
    assert ran == [([[1], [1]], 130), ([[5], [6]], 131)]
    week2.fill(2, 9, steps=3)
    for _ in range(5):
        week2.decode()
    assert [layer.offsets for layer in week2._batch] == [[9, 9]], "a sample leaves the batch as it was"


@pytest.mark.port("torch")
def test_the_baseline_computes_with_the_same_weights():
    cast, prompt = engines(replace(TINY, compare=("transformers",)), port_of("torch")), [5, 900, 33, 17, 2100]
    ours = cast["tiny-llm"]
    expected = ours.runner.prefill(prompt, 0, ours.runner.create_kv_cache(9), sample=True)
    for cache in CACHES:
        theirs = cast[f"transformers {cache}"]
        assert theirs._next([prompt], theirs._new_cache(9)) == [expected]
        up, mine = theirs.model.model.layers[0].mlp.up_proj.weight, ours.model.layers[0].mlp.w_up.weight
        assert up.data_ptr() == mine.data_ptr(), "the baseline has a copy of the weights"


@pytest.mark.parametrize(("phase", "through"), [("decode", "2.6"), ("prefill", "2.5"), ("chunk", "2.5")])
def test_a_blank_task_is_one_line_with_its_address(phase, through):
    options = f"--solution tiny_llm --backend {BACKENDS[-1]} --config tiny-qwen3 --phase {phase}"
    with pytest.raises(SystemExit) as end:
        latency.main(options.split())
    assert str(end.value.code).startswith("blank: week 1 day 1 task 1: softmax.")
    assert f"`pdm run course skip --through {through}" in end.value.code


def test_the_work_of_a_call_is_counted_from_the_weights_and_from_who_sees_whom():
    """Of three layers: four heads and two pairs of keys and values, of 64 each; five tokens see 1 + … + 5."""
    config, port = shape("tiny-qwen3", 3), port_of(BACKENDS[0])
    weights = 3 * (192 * (256 + 128 + 128) + 256 * 192 + 3 * 192 * 512)
    for tokens, seen in ((1, 1), (5, 15)):
        found = work(config, tokens, 4)
        assert found.operations == 2 * tokens * weights + 3 * 4 * seen * 4 * 64
        assert found.bytes == 4 * (weights + tokens * 3 * 256)
    model = engines(replace(TINY, layers=3), port)["tiny-llm"].model
    assert latency.weight_bytes(model) == 4 * (weights + 3520 * 192)
    assert kv_bytes_per_token(config, "float32") == 4 * 3 * 256


def test_the_roof_is_that_of_the_fastest_type_and_a_hopeless_one_is_not_tried():
    speeds, asked = {"float32": 50.0, "bfloat16": 3.0, "float16": 80.0}, []
    kit = SimpleNamespace(product_speed=lambda device, kind, size: asked.append((kind, size)) or speeds[kind])
    for device, size in (("cpu", 2048), ("cuda", 8192)):
        assert fastest_product(SimpleNamespace(backend_module=kit, device=device), speeds) == 80.0
        small, large = [(kind, size // 8) for kind in speeds], [("float32", size), ("float16", size)]
        assert asked == small + large
        asked.clear()


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_speed_of_a_product_is_its_operations_over_the_fastest_time(backend, monkeypatch):
    """Two for each of size · size · size; of three timed ones the fastest."""
    kit = port_of(backend).backend_module
    monkeypatch.setattr(kit, "seconds_of", lambda run, rounds: [run() or 7, 4, 8][:rounds])
    assert kit.product_speed("cpu", "float32", 64) == 2 * 64**3 / 4
