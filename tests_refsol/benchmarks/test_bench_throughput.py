"""`pdm run bench-throughput`: the flags of vLLM's benchmark, engines beside each other, and latencies of a trace."""

import runpy
import sys

import pytest

from benchmarks import real_model
from benchmarks import throughput as command
from benchmarks.engine_load import EngineLoad, latencies
from benchmarks.engine_plan import VARIANTS
from benchmarks.real_text import KINDS
from tiny_llm_course.trace.serve import EndlessTokenizer
from tiny_llm_course.trace.trace import Lane, Trace
from tiny_llm_course.trace.workload import LONG, RUNNING, SHORT, RequestSpec, Workload
from tiny_llm_engine.machine.installation import installed_backends
from tiny_llm_engine.machine.repo import ROOT
from tiny_llm_engine.models.weights.random_weights import shape
from tiny_llm_engine.solutions.port import Port
from tiny_llm_extensions.llm import LLM
from tiny_llm_extensions.loading import random_network

# The command of the chunked-prefill README, at a size that fits here.
ORIGINAL = (
    "--model tiny-qwen3 --trust-remote-code --enforce-eager --num-prompts 3 --input-len 24 --output-len 4 "
    "--max-num-batched-tokens 16 --max-num-seqs 2 --enable-chunked-prefill"
)
QUICK = "--rounds 1 --device cpu --dtype float32 --threads 1 --block-size 8"
RANDOM = "--config tiny-qwen3 --layers 1 --num-prompts 3 --input-len 20 --output-len 3 --max-num-seqs 2"
LAST = installed_backends()[-1]


def test_the_preset_of_the_guide_keeps_its_ratios():
    """The guide: 1,024 requests of 8,192 and 1,024 tokens, 128 at a time, 4,096 tokens per step."""
    options = vars(command.parser(["--preset", "guide"]).parse_args(["--preset", "guide", "--rounds", "1"]))
    names = ("num_prompts", "input_len", "output_len", "max_num_batched_tokens", "max_num_seqs")
    assert [8 * options[name] for name in names] == [1024, 8192, 1024, 4096, 128]
    assert options["enforce_eager"] and options["compare"] == ("unchunked",) and options["rounds"] == 1


def by_its_file(options: list[str]) -> None:
    """The command under the name of the file that serving people type."""
    sys.argv = ["benchmark_throughput.py", *options]
    runpy.run_path(str(ROOT / "benchmarks" / "benchmark_throughput.py"), run_name="__main__")


@pytest.mark.parametrize("backend", installed_backends())
def test_the_original_command_runs_on_every_port(bench, backend, monkeypatch):
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.setattr(sys, "path", [*sys.path])
    out, result = bench(by_its_file, ORIGINAL, QUICK, "--backend", backend)
    assert "--trust-remote-code: accepted, and no remote code is ever run" in out
    assert "at most 2 requests and 16 tokens per step" in out and "0 (eager)" in out
    [run] = result["runs"]["tiny-llm"]
    assert (run["requests"], run["prompt_tokens"], run["output_tokens"]) == (3, 72, 12)
    # 24 tokens in chunks of 16 tokens that two requests share; the last token of an answer is never computed.
    assert run["scheduled_tokens"] == 3 * (24 + 3)
    assert run["computed_tokens"] >= run["scheduled_tokens"]
    assert run["ttft_p50"] <= run["ttft_p99"] <= run["seconds"]
    assert 0 < run["tbt_p50"] <= run["tbt_p99"] <= run["longest_gap"] < run["seconds"]
    assert [run[name] for name in ("preemptions", "cached_tokens", "compiled_shapes")] == [0, 0, 0]
    assert 0 < run["peak_blocks"] <= 2 * 4


def test_our_engine_runs_in_other_ways_beside_itself_and_beside_transformers(bench):
    """One request at a time: each after the first finds four blocks of eight tokens in the cache."""
    theirs = "transformers" if LAST == "torch" else ""
    same = f"{RANDOM} --dataset shared-prefix --input-len 64 --max-num-seqs 1 --backend {LAST}"
    out, result = bench(command.main, QUICK, same, "--compare unchunked separate uncached", theirs)
    ours, *others = "tiny-llm", "tiny-llm unchunked", "tiny-llm separate", "tiny-llm uncached"
    runs = {name: runs[0] for name, runs in result["runs"].items()}
    assert list(runs)[:4] == [ours, *others] and all(run["seconds"] > 0 for run in runs.values())
    assert {"transformers, dynamic", "transformers, static"} <= runs.keys() or not theirs
    assert (runs[ours]["cached_tokens"], runs[others[2]]["cached_tokens"]) == (2 * (64 - 32), 0)
    assert runs[others[2]]["scheduled_tokens"] - runs[ours]["scheduled_tokens"] == 2 * (64 - 32)
    assert runs[others[0]]["calls"] > 0 and "random weights" in out
    assert "shared-prefix: 3 requests, 192 tokens" in out


@pytest.mark.port("torch")
@pytest.mark.tool("c++")
@pytest.mark.parametrize("activations", ["int8", "float"])
def test_a_result_says_with_which_activations(bench, activations):
    chosen = f"--backend torch --quantization 4bit --head-quantization 8bit --activations {activations}"
    out, result = bench(command.main, RANDOM, QUICK, chosen)
    notes = [f"tiny-llm: {bits} bits with {activations} activations" for bits in (4, 8)]
    assert result["notes"] == notes and all(note in out for note in notes)


def test_a_preemption_is_counted(bench):
    small = "--config tiny-qwen3 --layers 1 --num-prompts 2 --input-len 8 --output-len 9 --num-blocks 3"
    _, result = bench(command.main, small, QUICK, f"--backend {LAST}")
    [run] = result["runs"]["tiny-llm"]
    assert run["preemptions"] > 0, "both need two of three blocks"
    assert (run["peak_blocks"], run["num_blocks"]) == (2, 3)


@pytest.mark.parametrize("variant", ["", "unchunked", "separate", "sarathi"])
def test_a_late_prompt_meets_the_same_batch_under_every_policy(variant):
    """`arrives` counts decode steps: the first request has a token of its prompt, and one of each of the four."""
    port = Port("tiny_llm_ref", LAST, "cpu", "float32")
    network, _ = random_network(port, shape("tiny-qwen3", 1))
    sizes = {"max_num_batched_tokens": 8, "max_num_seqs": 4, "block_size": 8, "max_model_len": 64}
    engine = LLM.of(port, network, EndlessTokenizer(), **sizes | VARIANTS.get(variant, {})).engine
    specs = (RUNNING, 3, 9, None), (LONG, 20, 2, 4), (SHORT, 3, 2, 99), (SHORT, 3, 2, 4)
    load = EngineLoad(engine, Workload("", "", tuple(RequestSpec(*spec) for spec in specs)))
    met = {}

    def on_event(event):
        if event.kind == "arrive":
            met[event.request.request_id] = [request.num_tokens for request in load.requests]

    engine.listeners.append(on_event)
    load.run()
    waits = {0: [0, 0, 0, 0], 1: [5, 0, 0, 0], 3: [5, 0, 0, 0], 2: [9, 2, 0, 2]}
    assert met == waits, "the last waits for no step"
    assert [request.num_tokens for request in load.requests] == [9, 2, 2, 2]
    assert engine.listeners == [on_event], "the engine's own listeners stay, and no other one"


def test_latencies_are_those_of_the_trace_and_tokens_of_one_step_share_its_time():
    lanes = [Lane(0.0, request=0, prompt_tokens=3), Lane(0.5, request=1, prompt_tokens=3)]
    lanes[0].add_tokens([1.0, 2.0, 4.0])
    lanes[1].add_tokens([3.0])
    found = latencies(Trace("", lanes, [], 1, 1, 0, 4.0))
    assert (found["ttft_p50"], found["ttft_p99"]) == (1.0, 2.5)
    assert (found["tbt_p50"], found["tbt_p99"], found["longest_gap"]) == (1.0, 2.0, 2.0)
    alone = latencies(Trace("", lanes[1:], [], 1, 1, 0, 4.0))
    assert alone["tbt_p50"] is alone["tpot_p50"] is alone["longest_gap"] is None
    # Drafts: three tokens after 2 s, and one after 2 more. Zeros in the gaps would make their median 0.
    lane = Lane(0.0, request=0, prompt_tokens=3)
    lane.add_tokens([1.0, 3.0, 3.0, 3.0, 5.0])
    found = latencies(Trace("", [lane], [], 1, 1, 0, 5.0))
    assert (lane.gaps, found["tbt_p50"], found["tpot_p50"]) == ([2.0, 2.0], 2.0, 1.0)


# ---- the presets on a real model


def test_a_preset_measures_each_case_with_engines_of_its_own():
    one = {"backend": "torch", "provenance": {}, "notes": [], "plan": {"dtype": "float32"}}
    plans = {preset: [] for preset in real_model.PRESETS}
    for preset, of_preset in plans.items():
        plan = command.ThroughputPlan(**real_model.PRESETS[preset][1], threads=2)
        found = real_model.measure(preset, plan, lambda case, plans=of_preset: plans.append(case) or one)
        assert len(found["cases"]) == len(of_preset) and found["plan"]["dtype"] == "float32"
        assert all(case.max_num_seqs == case.num_prompts for case in of_preset)
    sizes = [(case.num_prompts, case.input_len, case.output_len) for case in plans["speed"]]
    assert sizes == [(1, 32, 64), (4, 32, 64), (16, 32, 64), (1, 128, 1), (1, 1024, 1)]
    texts = [(case.dataset, case.num_prompts) for case in plans["drafts"]]
    assert texts == [(kind, rows) for kind in KINDS for rows in (1, 4, 16)]


def test_a_profile_is_of_the_steps_of_one_request(b):
    sizes = {"num_blocks": 2, "max_model_len": 128, "max_num_seqs": 1}
    with LLM(backend=b.name, device="cpu", dtype="float32", **sizes) as llm:
        found = real_model.profile(llm)
    assert len(found) == real_model.LINES and found == sorted(found, key=lambda line: -line["ms"])
