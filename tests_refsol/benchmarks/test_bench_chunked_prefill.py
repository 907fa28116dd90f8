"""`pdm run bench-throughput --preset chunked-prefill`: the same batch for every size, exact latencies, the table."""

import io
import json
import re
import sys
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest
from rich.console import Console

from benchmarks import chunked_prefill, reports
from benchmarks import throughput as command
from benchmarks.chunked_prefill import (
    ADAPTIVE,
    POLICIES,
    SweepPlan,
    behind_a_long_one,
    figures_of,
    measure,
    sweep,
)
from benchmarks.chunked_prefill_report import (
    NONE,
    median,
    percent,
    policy_targets,
    sweep_targets,
    times_lower,
)
from benchmarks.command import progress_bar
from book.tools import screens, tradeoff_screen
from tiny_llm_kit.course.see import stalls_drawn, who_goes_first
from tiny_llm_kit.engine.backends.installation import installed_backends
from tiny_llm_kit.engine.solution import resolve_serving
from tiny_llm_kit.trace import chunk_sweep, provenance
from tiny_llm_kit.trace.serve import NoEnd, Serving, serve
from tiny_llm_kit.trace.simulation.simulated_model import SimulatedModel
from tiny_llm_kit.trace.simulation.step_cost import AdditiveCost, Line
from tiny_llm_kit.trace.workload import LONG, RUNNING, SHORT, RequestSpec, Workload, mixed, prompt_of
from tiny_llm_kit.trace.workload import decode_heavy as heavy

NAMES = resolve_serving("ref")
ENGINES = "Week 2, chunks of 16", "Week 3, budget of 16"


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
    kinds = [spec.kind for spec in mixed().requests]
    assert kinds == [LONG] * 3 + [SHORT] * 10 and mixed().batch_size == 5
    assert all(spec.arrives is None for spec in mixed().requests)
    figures = virtual(mixed(256), 128)
    assert (len(figures["ttft_long"]), len(figures["ttft_short"])) == (3, 10)
    assert figures["total"] > 3 * 256 + 10 * 8, "the prompts alone take that long"


def test_a_request_without_its_whole_answer_is_no_result():
    workload = Workload("broken", "", (RequestSpec(RUNNING, 4090, 20),), 1)
    with pytest.raises(NoEnd, match="request 0 has 6 of 20 tokens: length"):
        serve(paced(), workload, 128)


def test_prompts_are_of_the_vocabulary_and_differ():
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


def test_the_adaptive_chunker_has_its_row():
    """From the rule's 128 it goes down to the largest size whose chunks are below its target."""
    model = SimulatedModel(AdditiveCost(prefill=Line(0, 0.0006, 0), decode=Line(0.001, 0, 0)))
    serving = Serving(NAMES, model, clock=model.clock)
    found = sweep(serving, heavy(1024), (128, ADAPTIVE, None), 1, lambda text: None)
    assert list(found["runs"]) == ["128", "adaptive", NONE]
    assert [row["step"] for row in found["rows"]] == [128, "adaptive", None]
    gaps = {name: runs[0]["longest_gap"] for name, runs in found["runs"].items()}
    assert gaps["adaptive"] <= gaps["128"] < gaps[NONE]
    first = {name: runs[0]["ttft_long"] for name, runs in found["runs"].items()}
    assert first["adaptive"] > first["128"], "smaller chunks have more decode steps between them"


@pytest.mark.parametrize("is_terminal", [True, False])
def test_the_bar_counts_what_is_told_on_a_terminal_alone(is_terminal, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("TERM", "xterm")
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: is_terminal, raising=False)
    monkeypatch.setattr(sys, "stderr", stream)
    with progress_bar() as report:
        for number in range(5):
            report(f"chunk {number}", 20)
    out, errors = capsys.readouterr().out, stream.getvalue()
    assert out == "" and ("chunk 4" in errors and "4/20" in errors) == is_terminal
    assert is_terminal or errors == ""


@pytest.mark.parametrize("hybrid", [(), (64, 128)])
def test_every_run_is_counted_before_it_begins(hybrid, monkeypatch):
    """Week 3's engine is played by Week 2's with chunks of its budget."""
    told = []
    monkeypatch.setattr(
        chunked_prefill, "trace_of_run", lambda budget, workload: serve(paced(), workload, budget).trace()
    )
    plan = SweepPlan(
        "paced", steps=(128, ADAPTIVE, None), mixed_tokens=300, long_tokens=600, rounds=2, hybrid=hybrid
    )
    found = measure(plan, paced(), "none", "cpu", told.append, lambda budget, workload: budget)
    assert len(told) == plan.number_of_runs
    assert [case["name"] for case in found["engines"]] == ["mixed", "decode-heavy", "queued"][
        : 2 * len(hybrid)
    ]
    for case in found["engines"][1:2]:
        gaps = {name: [run["longest_gap"] for run in runs] for name, runs in case["runs"].items()}
        assert gaps == {
            "Week 2, whole prompts": [601, 601],
            "Week 2, chunks of 64": [65, 65],
            "Week 2, chunks of 128": [129, 129],
            "Week 3, budget of 64": [65, 65],
            "Week 3, budget of 128": [129, 129],
        }


# ---- the table


def run_of(**figures) -> dict:
    base = {"ttft_long": [4.0], "ttft_short": [1.0, 2.0, 9.0], "tbt_p50": 0.01, "tbt_p99": 1.0}
    return {**base, "longest_gap": 2.0, "stall_steps": 3, "total": 10.0, **figures}


def scripted() -> dict:
    """A result whose every figure is known: at 128 the gap is 8 × lower, and the total 20 % longer; at 512 5 %."""
    sweep_ = {
        "name": "decode-heavy",
        "says": "scripted",
        "rows": [],
        "runs": {
            "128": [run_of(longest_gap=0.25, tbt_p99=0.25, total=t, ttft_long=[6.0]) for t in (11, 12, 40)],
            "512": [run_of(total=10.5, stall_steps=1)] * 3,
            NONE: [run_of(longest_gap=g) for g in (1.0, 2.0, 3.0)],
        },
    }
    policies = [
        {
            "name": name,
            "says": "scripted",
            "runs": {
                "unchunked": [run_of()],
                "chunked, in order": [run_of(ttft_short=[4.0, 4.0, 4.0])],
                "chunked, with pausing": [run_of(ttft_short=[0.1, pausing, 0.8])],
            },
        }
        for name, pausing in (("queued", 0.16), ("arriving", 0.8))
    ]
    plan = {**SweepPlan("a-model", threads=1, dtype="float32").__dict__, "rounds": 3}
    return {
        "kind": "chunked-prefill",
        "backend": "torch",
        "plan": plan,
        "provenance": provenance.provenance("cpu"),
        "sweeps": [sweep_],
        "policies": policies,
    }


def printed(result: dict, width: int = 88) -> str:
    console = Console(width=width, file=io.StringIO())
    reports.show(console, result)
    return console.file.getvalue()


def test_figures_are_medians_and_quotients_of_medians():
    sweep_ = scripted()["sweeps"][0]
    assert median(sweep_["runs"]["128"], "total") == 12
    assert median(sweep_["runs"]["128"], "ttft_short") == 2.0, "of several prompts their median"
    assert times_lower(sweep_, "longest_gap", "128") == 8.0


def test_the_targets_say_what_was_met_and_what_was_missed():
    result = scripted()
    of_sweeps = [target for sweep_ in result["sweeps"] for target in sweep_targets(sweep_)]
    of_policies = [target for case in result["policies"] for target in policy_targets(case)]
    found = [(target.is_met, target.measured) for target in of_sweeps + of_policies]
    assert found == [
        (True, "8.0 ×"),
        (False, "4.0 ×"),
        (True, "+5 % at chunk 512"),
        (True, "25.0 × (the first of them 40 ×, the last 5 ×); than unchunked 12.5 ×"),
        (False, "5.0 × (the first of them 40 ×, the last 5 ×); than unchunked 2.5 ×"),
    ]


def test_the_table_has_every_figure_in_its_column():
    lines = [" ".join(line.split()) for line in printed(scripted()).splitlines()]
    assert "TTFT TTFT TBT TBT longest total stall spread" in lines
    assert "chunk long short p50 p99 gap time steps of gap" in lines
    row = lines.index("128 6,000 2,000 10.0 250 250 12,000 3 ±0 %")
    assert lines[row + 1] == "+50 % ±0 % ±0 % −75 % −88 % +20 %"
    assert lines[row + 2] == "512 4,000 2,000 10.0 1,000 2,000 10,500 1 ±0 %"
    assert "none 4,000 2,000 10.0 1,000 2,000 10,000 3 ±25 %" in lines
    assert "chunked, with pausing 4,000 160 10.0 1,000 2,000 10,000 3 –" in lines
    assert max(map(len, printed(scripted()).splitlines())) <= 88


def test_changes_have_a_sign_that_is_theirs():
    texts = ["−88 %", "+12 %", "±0 %", "±0 %", "+1,200 %"]
    assert [percent(x) for x in (-0.876, 0.12, 0.004, -0.004, 12)] == texts


def test_the_trade_off_has_a_dot_for_every_size_and_the_gap_is_below_the_prompt():
    result = scripted()
    result["sweeps"][0]["runs"]["adaptive"] = [run_of()]
    svg = tradeoff_screen.drawing(result)
    root = ElementTree.fromstring(svg)
    dots = [(float(c.get("cx")), float(c.get("cy"))) for c in root.iter("circle")]
    assert len(dots) == 6, "three sizes, two curves"
    assert all(0 < x < 360 and 0 < y < 250 for x, y in dots)
    gap, done = dots[:3], dots[3:]
    assert [x for x, _ in gap] == [x for x, _ in done] == sorted(x for x, _ in gap)
    assert all(low[1] > high[1] for low, high in zip(gap, done, strict=True))
    assert not re.search(r"NaN|None|style=|stroke=", svg) and svg.count("<title") == 1


# ---- the command


def test_everything_is_measured_and_can_be_kept():
    plan = SweepPlan("paced", (128, None), mixed_tokens=300, long_tokens=600, rounds=2)
    result = measure(plan, paced(), "none", "cpu", lambda text: None)
    assert json.loads(json.dumps(result)) == result
    assert [sweep_["name"] for sweep_ in result["sweeps"]] == ["mixed", "decode-heavy"]
    assert [case["name"] for case in result["policies"]] == ["queued", "arriving"]
    for case in [*result["sweeps"], *result["policies"]]:
        assert {len(runs) for runs in case["runs"].values()} == {2}
    assert list(result["policies"][0]["runs"]) == list(POLICIES)
    gap = result["sweeps"][1]["runs"]
    assert gap["128"][0]["longest_gap"] == 129 and gap[NONE][0]["longest_gap"] == 601
    [won] = [row["gap_won"] for row in result["sweeps"][1]["rows"] if row["step"] == 128]
    assert won == pytest.approx(1 - 129 / 601)


@pytest.mark.parametrize("backend", installed_backends()[-1:])
def test_the_command_prints_its_tables_and_keeps_a_sealed_result(backend, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(provenance, "RESULTS", tmp_path)
    monkeypatch.setattr(screens, "RESULTS", tmp_path)
    monkeypatch.setenv("COLUMNS", "120")  # where no name breaks, however long a figure is
    monkeypatch.setattr(chunked_prefill, "decode_heavy", lambda tokens: heavy(tokens, answer=24))
    monkeypatch.setattr(chunked_prefill, "mixed", lambda tokens: mixed(tokens, answer=2))
    options = ["--backend", backend, "--device", "cpu", "--threads", "1", "--rounds", "1", "--steps", "32"]
    options += ["--preset", "chunked-prefill", "--mixed-tokens", "40", "--long-tokens", "64"]
    options += ["--config", "tiny-qwen3", "--layers", "1", "--hybrid", "16"]
    command.main([*options, "--save", "x"])
    out = capsys.readouterr().out
    assert "kept: x.json" in out and out.count("chunked, with pausing") == 2, out
    assert re.search(r"tiny-qwen3, 1 layer, random weights, float32, (mlx|torch) on ", out)
    kept = json.loads((tmp_path / "x.json").read_text(encoding="utf-8"))
    assert provenance.is_sealed(kept) and kept["options"] == " ".join(options)
    assert list(kept["sweeps"][0]["runs"]) == ["32", NONE], "what all are compared with was not measured"
    assert out.count("Week 3, budget of 16") == 3 and out.count("arrival is counted in calls") == 1, out
    week2, week3 = (kept["engines"][1]["runs"][name][0] for name in ENGINES)
    assert week3["stall_steps"] == week2["stall_steps"] == 0 and len(week3["ttft_long"]) == 1
    assert 0 < week3["tbt_p50"] <= week3["longest_gap"] < week3["total"]
    monkeypatch.setattr(screens, "SHIPPED", "another")
    [(name, page)] = screens.benchmark_screens()
    assert name == "benchmark-x" and "pdm run bench-throughput --backend" in page and "longest" in page


@pytest.mark.parametrize(
    "wrong",
    [
        ["--steps", "0"],
        ["--steps", "few"],
        ["--config", "gpt-5"],
        ["--rounds", "0"],
        ["--preset", "x"],
        ["--dataset", "random"],
    ],
)
def test_wrong_options_are_usage_errors(wrong, refused):
    assert "usage: pdm run bench-throughput" in refused(command.main, ["--preset", "chunked-prefill", *wrong])


def test_a_model_that_is_not_there_is_one_line(refused):
    assert (
        "no-such-model"
        in refused(
            command.main, ["--preset", "chunked-prefill", "--model", "no-such-model", "--device", "cpu"]
        ).splitlines()[-1]
    )


# ---- the day's screen


def test_the_screens_timelines_are_those_of_the_scheduler():
    """A column is one token's time: what waits longer than one chunk of four is a stall."""
    before = [line.plain for line in stalls_drawn.timeline(NAMES, stalls_drawn.DRAWN, 10**6)]
    assert before == [
        "A  Aa·aa····!!!!!!!!!!!!!!!!!!aaaaa",
        "B  --Bbb····!!!!!!!!!!!!!!!!!!bbbbbb",
        "C      -CCCCCCCCCCCCCCCCCCCCCCcc",
    ]
    after = [line.plain for line in stalls_drawn.timeline(NAMES, stalls_drawn.DRAWN, 4)]
    assert after == [
        "A  Aa·aa····a····a····a····a····a",
        "B  --Bbb····b····b····b····b····b··b",
        "C      -CCCC·CCCC·CCCC·CCCC·CCCC·CCcc",
    ]


def test_the_screen_counts_the_stalls_that_it_predicts():
    console = Console(width=88, file=io.StringIO(), highlight=False)
    stalls_drawn.show_stalls(NAMES, console)
    out = console.file.getvalue()
    assert "⌈2,048 / 128⌉ − 1 = 15 stall steps" in out
    rows = [line.split() for line in out.splitlines()[-4:]]
    assert [row[:2] for row in rows] == [["32", "0"], ["128", "0"], ["512", "12"], ["none", "15"]]
    gaps = [float(row[2]) for row in rows]
    assert gaps == sorted(gaps) and gaps[3] > 5 * gaps[1], "measured costs: the gap grows with the chunk"


def test_the_screen_of_who_goes_first_shows_both_promises():
    """A unit per token, so every figure can be worked out by hand; the chapter has them as its answer."""
    console = Console(width=80, file=io.StringIO(), highlight=False)
    who_goes_first.show_two_promises(NAMES, console)
    rows = [line.split()[-4:] for line in console.file.getvalue().splitlines()[-3:]]
    chunks, decodes = 2048 // 128, 2048 // 128 - 1
    assert rows == [
        [f"{chunks - 1}", "2,053", "2,048", "2,058"],
        ["0", "133", f"{2048 + 4 * decodes:,}", f"{2048 + 4 * decodes + 5 + 5:,}"],
        ["0", "134", f"{5 + 5 + 2048 + 5 * decodes:,}", "5"],
    ]


def test_the_screen_of_who_goes_first_bounds_the_wait_by_patience():
    console = Console(width=80, file=io.StringIO(), highlight=False)
    who_goes_first.show_patience(NAMES, console)
    rows = [line.split() for line in console.file.getvalue().splitlines()[-len(who_goes_first.PATIENCE) :]]
    assert rows == [[f"{n}", f"{n}", f"{1024 + 8 * n:,}"] for n in who_goes_first.PATIENCE]


def test_a_paused_prompt_is_drawn_so_and_the_wait_of_a_reader_is_never_a_stall():
    lines = stalls_drawn.timeline(NAMES, who_goes_first.DRAWN, 4, pause_prefill=True)
    assert lines[1].plain.startswith("C    -CCCC·----CCCC") and "!" not in "".join(map(str, lines))
