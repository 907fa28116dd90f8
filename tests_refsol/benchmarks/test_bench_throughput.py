"""`pdm run bench-throughput`: the flags of vLLM's benchmark, figures, baselines, a sealed result."""

import io
import json
import re
import runpy
import sys

import pytest
from rich.console import Console

from benchmarks import reports
from benchmarks import throughput as command
from benchmarks.engine_load import EngineLoad, latencies
from benchmarks.engine_plan import VARIANTS
from benchmarks.report import SEVERAL_TOKENS
from benchmarks.throughput import OurGenerator, ThroughputPlan
from benchmarks.throughput_report import graphs
from benchmarks.throughput_report import latencies as latencies_table
from book.tools import result_tables, screens
from tiny_llm_kit.engine.backends.installation import installed_backends
from tiny_llm_kit.engine.llm import LLM
from tiny_llm_kit.engine.loading import random_network
from tiny_llm_kit.engine.port import Port
from tiny_llm_kit.engine.weights.random_weights import shape
from tiny_llm_kit.repo import ROOT
from tiny_llm_kit.trace import provenance
from tiny_llm_kit.trace.serve import EndlessTokenizer
from tiny_llm_kit.trace.trace import Lane, Trace
from tiny_llm_kit.trace.workload import LONG, RUNNING, SHORT, RequestSpec, Workload

# The command of the chunked-prefill README, at a size that fits here.
ORIGINAL = (
    "--model tiny-qwen3 --trust-remote-code --enforce-eager --num-prompts 3 --input-len 24 --output-len 4 "
    "--max-num-batched-tokens 16 --max-num-seqs 2 --enable-chunked-prefill"
)
QUICK = "--rounds 1 --device cpu --dtype float32 --threads 1 --block-size 8"
RANDOM = "--config tiny-qwen3 --layers 1 --num-prompts 3 --input-len 20 --output-len 3 --max-num-seqs 2"


def words(*arguments: str) -> list[str]:
    """Each argument, or several in one text."""
    return [word for argument in arguments for word in argument.split()]


@pytest.fixture
def bench(capsys, tmp_path):
    """(what it prints, its result)."""

    def run(*arguments: str) -> tuple[str, dict]:
        file = tmp_path / "result.json"
        command.main(words(*arguments, QUICK, "--json", str(file)))
        return capsys.readouterr().out, json.loads(file.read_text(encoding="utf-8"))

    return run


def test_the_preset_of_the_guide_keeps_its_ratios():
    """The guide: 1,024 requests of 8,192 and 1,024 tokens, 128 at a time, 4,096 tokens per step."""
    options = vars(command.parser(["--preset", "guide"]).parse_args(["--preset", "guide", "--rounds", "1"]))
    names = ("num_prompts", "input_len", "output_len", "max_num_batched_tokens", "max_num_seqs")
    assert [8 * options[name] for name in names] == [1024, 8192, 1024, 4096, 128]
    assert options["enforce_eager"] and options["compare"] == ("unchunked",) and options["rounds"] == 1


@pytest.mark.parametrize("backend", installed_backends())
def test_the_original_command_runs_on_every_port(bench, backend):
    out, result = bench(ORIGINAL, "--backend", backend)
    assert "--trust-remote-code: accepted, and no remote code is ever run" in out
    assert "at most 2 requests and 16 tokens per step" in out and "0 (eager)" in out
    [run] = result["runs"]["tiny-llm"]
    assert (run["requests"], run["prompt_tokens"], run["output_tokens"]) == (3, 72, 12)
    # 24 tokens in chunks of 16 tokens that two requests share; the last token of an answer is never computed.
    assert run["scheduled_tokens"] == 3 * (24 + 3)
    assert run["computed_tokens"] >= run["scheduled_tokens"]
    assert run["ttft_p50"] <= run["ttft_p99"] <= run["seconds"]
    assert 0 < run["tbt_p50"] <= run["tbt_p99"] <= run["longest_gap"] < run["seconds"]
    assert run["compiled_shapes"] == 0
    assert 0 < run["peak_blocks"] <= 2 * 4 and run["preemptions"] == run["cached_tokens"] == 0


def test_the_file_that_serving_people_type_is_the_same_command(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["benchmark_throughput.py", "--help"])
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(ROOT / "benchmarks" / "benchmark_throughput.py"), run_name="__main__")
    shown = capsys.readouterr().out
    assert end.value.code == 0
    for flag in {*re.findall(r"--[a-z-]+", ORIGINAL), "--no-enable-chunked-prefill"}:
        assert flag in shown, flag


def test_our_engine_runs_in_other_ways_beside_itself(bench):
    arguments = [RANDOM, "--dataset", "shared-prefix", "--input-len", "48", "--num-blocks", "14"]
    out, result = bench(
        *arguments, "--compare", "unchunked", "separate", "--backend", installed_backends()[-1]
    )
    assert list(result["runs"]) == ["tiny-llm", "tiny-llm unchunked", "tiny-llm separate"]
    runs = {name: runs[0] for name, runs in result["runs"].items()}
    assert runs["tiny-llm"]["cached_tokens"] >= 16, "the third request begins as the others did"
    assert runs["tiny-llm unchunked"]["calls"] > 0 and result["plan"]["compare"] == ["unchunked", "separate"]
    assert "random weights" in out and "shared-prefix: 3 requests, 144 tokens" in out


def test_the_prefix_cache_can_be_compared_with_none(bench):
    arguments = [RANDOM, "--dataset", "shared-prefix", "--input-len", "64", "--max-num-seqs", "1"]
    _, result = bench(*arguments, "--compare", "uncached", "--backend", installed_backends()[-1])
    ours, uncached = (runs[0] for runs in result["runs"].values())
    assert (ours["cached_tokens"], uncached["cached_tokens"]) == (2 * (64 - 32), 0)
    assert uncached["scheduled_tokens"] - ours["scheduled_tokens"] == 2 * (64 - 32)


@pytest.mark.port("torch")
@pytest.mark.tool("c++")
@pytest.mark.parametrize("activations", ["int8", "float"])
def test_a_result_says_with_which_activations(bench, activations):
    chosen = f"--backend torch --quantization 4bit --head-quantization 8bit --activations {activations}"
    out, result = bench(RANDOM, chosen)
    notes = [f"tiny-llm: {bits} bits with {activations} activations" for bits in (4, 8)]
    assert result["notes"] == notes and all(note in out for note in notes)


@pytest.mark.parametrize(
    "variant", [{}, VARIANTS["unchunked"], VARIANTS["separate"], VARIANTS["sarathi"]], ids=str
)
def test_a_late_prompt_meets_the_same_batch_under_every_policy(variant):
    """`arrives` counts decode steps: the first request has a token of its prompt, and one of each of the four."""
    port = Port("tiny_llm_ref", installed_backends()[-1], "cpu", "float32")
    network, _ = random_network(port, shape("tiny-qwen3", 1))
    options = {
        "max_num_batched_tokens": 8,
        "max_num_seqs": 4,
        "block_size": 8,
        "max_model_len": 64,
        **variant,
    }
    engine = LLM.of(port, network, EndlessTokenizer(), **options).engine
    specs = (RUNNING, 3, 9, None), (LONG, 20, 2, 4), (SHORT, 3, 2, 99), (SHORT, 3, 2, 4)
    load = EngineLoad(engine, Workload("", "", tuple(RequestSpec(*spec) for spec in specs)))
    met = {}

    def on_event(event):
        if event.kind == "arrive":
            met[event.request.request_id] = [request.num_tokens for request in load.requests]

    engine.listeners.append(on_event)
    load.run()
    assert met == {0: [0, 0, 0, 0], 1: [5, 0, 0, 0], 3: [5, 0, 0, 0], 2: [9, 2, 0, 2]}, (
        "the last waits for no step"
    )
    assert [request.num_tokens for request in load.requests] == [9, 2, 2, 2]
    assert engine.listeners == [on_event]


def test_a_run_keeps_the_engines_own_listeners():
    """They hear what happens, and are there afterwards."""
    port = Port("tiny_llm_ref", installed_backends()[-1], "cpu", "float32")
    network, _ = random_network(port, shape("tiny-qwen3", 1))
    llm = LLM.of(port, network, EndlessTokenizer(), max_num_seqs=2, block_size=8, max_model_len=32)
    heard = []
    llm.engine.listeners.append(heard.append)
    generator = OurGenerator(llm, 1)
    figures = generator.generate(Workload("", "", (RequestSpec(SHORT, 3, 2), RequestSpec(SHORT, 3, 2))))
    assert llm.engine.listeners == [heard.append]
    assert [event.kind for event in heard].count("finish") == 2 and figures["calls"] == 2


@pytest.mark.port("torch")
def test_transformers_answers_the_same_requests(bench):
    _, result = bench(RANDOM, "--backend", "torch", "--compare", "transformers", "--dataset", "sharegpt-like")
    assert {"transformers, dynamic", "transformers, static"} <= set(result["runs"])
    assert all(run["seconds"] > 0 for runs in result["runs"].values() for run in runs)


def test_a_preemption_is_counted(bench):
    small = "--config tiny-qwen3 --layers 1 --num-prompts 2 --input-len 8 --output-len 9 --num-blocks 3"
    _, result = bench(small, "--backend", installed_backends()[-1])
    [run] = result["runs"]["tiny-llm"]
    assert run["preemptions"] > 0, "both need two of three blocks"
    assert (run["peak_blocks"], run["num_blocks"]) == (2, 3)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            ["--input-len", "4090", "--output-len", "99"],
            "4,189 tokens with the answer: the model reads at most 4,096",
        ),
        (["--input-len", "99999999"], "100,000,031 tokens with the answer: the model reads at most 4,096"),
        (["--layers", "2"], "--layers needs random weights"),
        (["--compare", "transformers", "--backend", "torch"], "tiny-qwen3: a baseline reads a GGUF file"),
        (["--compare", "transformers", "--backend", "mlx", "--random-weights"], "choose --backend torch"),
        (
            ["--compare", "mlx-lm-own-blas", "--backend", "torch", "--random-weights"],
            "--compare mlx-lm-own-blas needs the mlx port",
        ),
        (["--dataset", "no-file.txt"], "no-file.txt: cannot be read"),
        (["--dataset", "decode-heavy", "--num-prompts", "8"], "needs more than its 8 streams"),
        (
            [
                "--dataset",
                "decode-heavy",
                "--compare",
                "transformers",
                "--random-weights",
                "--backend",
                "torch",
            ],
            "--compare transformers: prompts of --dataset decode-heavy arrive among our engine's steps",
        ),
        (["--max-num-batched-tokens", "3"], "max_num_batched_tokens is 3"),
        (["--model", "no-such-model"], "model 'no-such-model'"),
    ],
)
def test_what_cannot_be_measured_is_one_line(arguments, says, refused):
    if "--backend" in arguments and arguments[arguments.index("--backend") + 1] not in installed_backends():
        pytest.xfail("that port is missing")
    errors = refused(command.main, words(*arguments, QUICK))
    assert says in errors and errors.count("\n") == 1


def scripted() -> dict:
    """Three rounds of two engines; ours computed 10 tokens for 8 that were asked for."""
    asked = {"requests": 4, "prompt_tokens": 60, "output_tokens": 20}
    ours = {
        **asked,
        "ttft_p50": 0.1, "ttft_p99": 0.2, "tbt_p50": 0.01, "tbt_p99": 0.02, "longest_gap": 0.5,
        "calls": 7, "preemptions": 2, "peak_blocks": 5, "num_blocks": 9, "cached_tokens": 15,
        "scheduled_tokens": 8, "computed_tokens": 10, "scheduled_pages": 2, "computed_pages": 5,
    }  # fmt: skip
    runs = {
        "tiny-llm": [{"seconds": s, **ours} for s in (2.0, 1.0, 4.0)],
        "theirs": [{"seconds": s, **asked} for s in (3.0, 5.0, 9.0)],
    }
    plan = {**ThroughputPlan(dtype="float32").__dict__, "compare": ["transformers"]}
    result = {
        "kind": "throughput",
        "backend": "torch",
        "plan": plan,
        "dataset": "random: 4 requests",
        "notes": ["theirs: alone"],
        "left_out": ["another"],
    }
    return {**result, "provenance": provenance.provenance("cpu"), "budget": 512, "runs": runs}


def test_the_tables_have_medians_and_quotients():
    console = Console(width=100, file=io.StringIO())
    reports.show(console, scripted())
    lines = [" ".join(line.split()) for line in console.file.getvalue().splitlines()]
    assert lines.index("Left out: another") == lines.index("theirs: alone") + 1
    assert "tiny-llm 2.00 40.0 10.0 ±38 %" in lines
    assert "theirs 0.80 16.0 4.0 ±30 % 2.50 ×" in lines
    assert "tiny-llm 100.0 200.0 10.0 20.0 500.0" in lines
    assert "tiny-llm 7 20.0 %, 60.0 % of pages 25.0 % 2 0 (eager) 5 of 9" in lines


def test_the_list_has_the_fastest_other_program_and_marks_a_loss():
    result, run = scripted(), scripted()["runs"]["theirs"][0]
    one = {
        **result,
        "plan": result["plan"] | {"rounds": 1},
        "runs": {"tiny-llm": [run], "slow": [run | {"seconds": 6}]},
    }
    result["runs"] |= {"tiny-llm unchunked": [run | {"seconds": 0.1}], "faster": [run | {"seconds": 1.0}]}
    text = result_tables.fastest_baselines([("a", result), ("b", one), ("c", {**result, "kind": "serve"})])
    case = "16 × 128 + 32"
    assert f"| a | {case} | 10.0 | faster | 20.0 | **0.50 ×** | medians of 3 rounds |\n" in text
    assert (
        text.endswith(f"| b | {case} | 6.7 | slow | 3.3 | 2.00 × | one round |\n")
        and "in 1 of 2 cases" in text
    )


def test_the_table_says_how_many_shapes_were_compiled_and_how_long_it_took():
    assert graphs({"compiled_shapes": 3, "setup_seconds": 12.4}) == "3 shapes, 12 s"
    assert graphs({}) == "0 (eager)", "as files say that were written before there were graphs"


def test_latencies_are_those_of_the_trace():
    lanes = [Lane(0.0, request=0, prompt_tokens=3), Lane(0.5, request=1, prompt_tokens=3)]
    lanes[0].add_tokens([1.0, 2.0, 4.0])
    lanes[1].add_tokens([3.0])
    found = latencies(Trace("", lanes, [], 1, 1, 0, 4.0))
    assert (found["ttft_p50"], found["ttft_p99"]) == (1.0, 2.5)
    assert (found["tbt_p50"], found["tbt_p99"], found["longest_gap"]) == (1.0, 2.0, 2.0)
    alone = latencies(Trace("", lanes[1:], [], 1, 1, 0, 4.0))
    assert alone["tbt_p50"] is alone["tpot_p50"] is alone["longest_gap"] is None


def test_tokens_of_one_step_share_its_time_in_tpot_and_have_no_gap():
    """Drafts: three tokens after 2 s, and one after 2 more. Zeros in the gaps would make their median 0."""
    lane = Lane(0.0, request=0, prompt_tokens=3)
    lane.add_tokens([1.0, 3.0, 3.0, 3.0, 5.0])
    found = latencies(Trace("", [lane], [], 1, 1, 0, 5.0))
    assert (lane.gaps, found["tbt_p50"], found["tpot_p50"]) == ([2.0, 2.0], 2.0, 1.0)


def test_a_run_with_drafts_shows_the_time_per_token():
    result = scripted()
    assert "TPOT p50" not in [column.header for column in latencies_table(result).columns]
    for run in result["runs"]["tiny-llm"]:
        run |= {"drafts": 2, "draft_tokens": 8, "accepted_tokens": 6, "tpot_p50": 0.004}
    console = Console(width=100, file=io.StringIO())
    reports.show(console, result)
    lines = [" ".join(line.split()) for line in console.file.getvalue().splitlines()]
    assert "tiny-llm: 8 drafts in 2 decodes, 75 % of them accepted, 3.0 per decode" in lines
    assert SEVERAL_TOKENS in lines
    assert "ms TTFT p50 p99 TPOT p50 TBT p50 p99 longest gap" in lines
    assert "tiny-llm 100.0 200.0 4.0 10.0 20.0 500.0" in lines


def test_a_kept_result_is_sealed_and_has_its_screen(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(provenance, "RESULTS", tmp_path)
    monkeypatch.setattr(screens, "RESULTS", tmp_path)
    monkeypatch.setattr(provenance, "_git", lambda *arguments: "0123456789ab")
    command.main(words(RANDOM, QUICK, "--save t"))
    assert "kept: t.json" in capsys.readouterr().out
    kept = json.loads((tmp_path / "t.json").read_text(encoding="utf-8"))
    assert provenance.is_sealed(kept) and kept["provenance"]["commit"] == "0123456789ab"
    [(name, page)] = screens.benchmark_screens()
    assert name == "benchmark-t" and "bench-throughput --config tiny-qwen3" in page
