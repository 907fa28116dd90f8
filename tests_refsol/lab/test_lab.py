"""The lab: traffic from published quantiles, the paper's hardware, the studies, and `pdm run lab`."""

import io
import json
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from statistics import median
from types import SimpleNamespace
from xml.etree import ElementTree

import numpy as np
import pytest
from rich.console import Console

from book.tools import screens
from tiny_llm_course.trace import provenance
from tiny_llm_course.trace.simulation.step_cost import AdditiveCost, StepWork
from tiny_llm_engine.machine.installation import installed_backends
from tiny_llm_engine.solutions.solution import resolve_serving
from tiny_llm_extensions.cold_blocks.moves import FOLDER, MEMORY, POOL, QUANTIZED, BlockCosts
from tiny_llm_lab import lab as command
from tiny_llm_lab.studies import (
    agreement,
    capacity,
    chunk_policies,
    conversations,
    disaggregation,
    guide,
    latency_studies,
    latency_targets,
    pipeline,
    scale,
    settings,
    single_prompt,
)
from tiny_llm_lab.studies.catalogue import ALL, STUDIES
from tiny_llm_lab.studies.disaggregated_serving import Load, Split, table_of_arrived
from tiny_llm_lab.studies.hardware import DECODE, DECODE_CONTEXT, HARDWARE, PREFILL
from tiny_llm_lab.studies.operator_times import A40_LLAMA2_70B, A100_LLAMA3_8B
from tiny_llm_lab.studies.served import StudyPlan, options_of, serve_in_stages, serve_trace
from tiny_llm_lab.studies.study import show
from tiny_llm_lab.traffic import TRACES, traffic

PLAN = StudyPlan(resolve_serving("ref"), requests=24, seeds=(0,))


def column(study, name):
    place = study.columns.index(name)
    return [row[place] for row in study.rows]


# ---- traffic


@pytest.mark.parametrize("trace", TRACES)
def test_lengths_have_the_published_quantiles(trace):
    lengths = TRACES[trace]
    drawn = lengths.draw(np.random.default_rng(0), 20_000)
    for values, published in zip(drawn.T, (lengths.prompts, lengths.answers), strict=True):
        middle = [(p, q) for p, q in zip(lengths.percents, published, strict=True) if 5 <= p <= 95]
        for p, quantile in middle:
            # Of two quantiles that are far apart the lower one is steep: the next per cent is near enough.
            low, high = np.percentile(values, [p - 1, p + 1])
            assert 0.97 * low <= quantile <= 1.03 * high, (trace, p, quantile, low, high)
    assert drawn.min() >= 1 and drawn.sum(axis=1).max() <= lengths.most


def test_arxiv_has_the_published_deviations_in_the_right_places():
    prompts, answers = TRACES["arxiv"].draw(np.random.default_rng(0), 50_000).T
    assert prompts.std() == pytest.approx(3638, rel=0.02)
    assert answers.std() == pytest.approx(101, rel=0.03)


@pytest.mark.parametrize(("variation", "tolerance"), [(1.0, 0.05), (13.0, 0.5)])
def test_arrivals_have_their_rate_and_their_variation(variation, tolerance):
    times = [spec.time for spec in traffic("azure-code", 2.0, 20_000, seed=1, variation=variation)]
    gaps = np.diff([0.0, *times])
    assert gaps.mean() == pytest.approx(0.5, rel=tolerance) and gaps.min() >= 0
    assert gaps.std() / gaps.mean() == pytest.approx(variation, rel=tolerance)


def test_a_seed_is_a_trace_and_a_rate_only_stretches_it():
    found = list(traffic("openchat", 1.0, 1500, seed=3))
    assert (
        found == list(traffic("openchat", 1.0, 1500, seed=3)) != list(traffic("openchat", 1.0, 1500, seed=4))
    )
    faster = list(traffic("openchat", 2.0, 1500, seed=3))
    assert len(found) == len(faster) == 1500
    assert [(s.tokens, s.answer) for s in found] == [(s.tokens, s.answer) for s in faster]
    assert faster[-1].time == pytest.approx(found[-1].time / 2)
    assert list(traffic("openchat", 1.0, 10, seed=3)) == found[:10]
    with pytest.raises(ValueError, match="rate 0"):
        next(traffic("openchat", 0, 1))


# ---- the paper's hardware


@pytest.mark.parametrize("name", ["yi-34b", "yi-34b-steps"])
def test_the_published_prompts_are_within_a_tenth(name):
    cost = HARDWARE[name].cost
    for tokens, seconds in PREFILL.items():
        assert cost.seconds(StepWork(tokens, tokens * (tokens + 1) // 2)) == pytest.approx(seconds, rel=0.1)


def test_the_published_decodes_are_within_a_fifth():
    cost = HARDWARE["yi-34b-steps"].cost
    for requests, seconds in DECODE.items():
        work = StepWork(decodes=requests, decode_pairs=requests * DECODE_CONTEXT)
        assert cost.seconds(work) == pytest.approx(seconds, rel=0.2)


# ---- studies


def test_chunks_keep_the_gaps_short_and_hybrid_batches_the_first_token_early(monkeypatch):
    """What the paper's ablation says of each of the two, on the trace whose lengths are known."""
    monkeypatch.setattr(latency_studies, "PAPER", {("openchat", 1.0): latency_studies.PAPER["openchat", 1.0]})
    study = latency_studies.ablation(StudyPlan(PLAN.names, requests=32, seeds=(0,)))
    found = {row[2]: (row[3], row[5]) for row in study.rows}
    (hybrid_ttft, hybrid_tbt), (chunks_ttft, chunks_tbt), (both_ttft, both_tbt) = found.values()
    assert hybrid_ttft < both_ttft < chunks_ttft
    assert both_tbt < chunks_tbt < hybrid_tbt / 2


@pytest.fixture
def few_budgets(monkeypatch):
    monkeypatch.setattr(latency_studies, "BUDGETS", (256, 1024, 8192))


def test_a_larger_budget_trades_gaps_for_first_tokens(few_budgets):
    study = latency_studies.budget(PLAN)
    assert all(a < b for a, b in pairwise(column(study, "P99 TBT")))
    assert column(study, "P50 TTFT")[0] > 2 * column(study, "P50 TTFT")[-1]


def test_chunks_cost_more_than_a_whole_prompt_and_larger_ones_less():
    study = single_prompt.overhead(PLAN)
    for prompt in single_prompt.PROMPTS:
        times = [row[3] for row in study.rows if row[0] == prompt]
        assert times[0] > times[1] > times[2] >= 1
    assert 1.1 < times[0] < 1.3


def test_decodes_beside_a_prompt_are_nearly_free():
    [alone, beside, decodes] = column(single_prompt.piggyback(PLAN), "step ms")
    assert beside < 1.01 * alone and decodes > 20


def test_one_token_more_than_whole_tiles_costs_a_tile():
    study = single_prompt.tiles(PLAN)
    more = dict(zip(column(study, "tokens"), column(study, "more than 256 tokens, %"), strict=True))
    assert more[257] == pytest.approx(32, abs=3)
    assert more[384] - more[257] < 1 < more[385] - more[384]
    assert abs(more[255]) < 0.1


# A second for each token of a prompt and each decode: bubbles can be worked out by hand.
PLAIN = AdditiveCost.of_terms(0.0, 1.0, 0.0, 1.0)


def prompts(*tokens):
    return [StepWork(chunk_tokens=n) for n in tokens]


def test_equal_micro_batches_leave_no_bubble():
    found = pipeline.pass_in_turns(PLAIN, prompts(*[10] * 20))
    assert not any(found.seconds_by_kind().values())
    assert (found.worked, found.end) == (200, 105)


def test_unequal_micro_batches_wait_for_one_another():
    """The paper's example: 1,150 ms of a prompt in turns with 200 ms of decodes, a bubble of 950 ms."""
    works = [StepWork(chunk_tokens=2300), StepWork(decodes=400)] * 20
    bubbles = pipeline.pass_in_turns(PLAIN, works).seconds_by_kind()
    assert bubbles["PB2"] == pytest.approx(950 * 2 * 19), "once in each stage, in each turn but the first"
    assert bubbles["PB1"] == bubbles["PB3"] == 0


def test_the_kinds_of_bubbles():
    prompt, decodes = StepWork(chunk_tokens=9, decodes=2), StepWork(decodes=3)
    assert [pipeline.kind_of(*pair) for pair in ((prompt, prompt), (prompt, decodes), (decodes, prompt))] == [
        "PB1",
        "PB2",
        "PB2",
    ]
    assert pipeline.kind_of(decodes, decodes) == "PB3"


def test_a_micro_batch_that_waited_for_requests_follows_no_bubble():
    found = pipeline.SimulatedPipeline(PLAIN)
    found.send(*prompts(4), 0.0)
    found.send(*prompts(4), 100.0, is_late=True)
    assert not any(found.run.seconds_by_kind().values()) and found.run.end == 104


def test_chunks_leave_fewer_bubbles_than_whole_prompts():
    study = pipeline.run(StudyPlan(PLAN.names, requests=24, seeds=(0,)))
    found = dict(zip(column(study, "scheduler"), column(study, "bubbles, %"), strict=True))
    assert found["Sarathi-Serve"] < found["Orca"] and found["Sarathi-Serve"] < found["vLLM"]
    by_kind = dict(
        zip(column(pipeline.bubbles(PLAN), "kind"), column(pipeline.bubbles(PLAN), "bubbles, %"), strict=True)
    )
    assert by_kind["PB2"] > by_kind["PB3"] > 10 and by_kind["PB1"] == pytest.approx(0, abs=2), (
        "the last is uniform"
    )


def test_bursts_delay_first_tokens_that_a_poisson_process_does_not():
    study = latency_studies.bursts(StudyPlan(PLAN.names, requests=60, seeds=(0,)))
    late = {(row[0], row[1]): row[3] for row in study.rows}
    for scheduler in latency_studies.SCHEDULERS:
        assert late["bursts", scheduler] > 2 * late["Poisson", scheduler], scheduler


def test_a_capacity_is_the_highest_rate_that_holds():
    assert capacity.largest_step(lambda rate: rate <= 1.0) == 61
    assert capacity.rate_of(61) <= 1.0 < capacity.rate_of(62)
    assert capacity.largest_step(lambda rate: False) is None
    assert (
        capacity.capacity(lambda rate: (rate / 10, 0.0), 0.2)
        <= 2.0
        < 1.06 * capacity.capacity(lambda rate: (rate / 10, 0.0), 0.2)
    )
    assert capacity.capacity(lambda rate: (0.0, 4 * rate), 0.2) <= 0.5, "the delay is a target as well"


def test_a_capacity_grows_with_its_target():
    trial = capacity.trials(PLAN, "openchat", "Sarathi-Serve", 512)
    strict, middle, relaxed = (capacity.capacity(trial, target) for target in (0.12, 0.2, 1.0))
    assert 0 < strict < middle == relaxed, "in the end it is the delay that counts"


def test_the_schedulers_of_the_paper_serve_everybody():
    for scheduler in (*capacity.SCHEDULERS, *latency_studies.PAPER["openchat", 1.0]):
        run = serve_trace(PLAN, "arxiv", 2.0, 0, **options_of(scheduler, "arxiv"))
        latencies = run.recorder.latencies()
        assert (latencies.requests, latencies.failed, len(latencies.ttfts)) == (24, 0, 24), scheduler
        assert run.allocator.num_free == run.allocator.num_blocks


def test_a_million_is_labelled_as_extrapolated():
    clock = iter([0.0, 12.0])
    study = scale.run(PLAN, lambda: next(clock))
    assert column(study, "processor s") == [12.0, pytest.approx(12.0 * 1e6 / 24)]
    assert "extrapolated" in study.rows[1][0] and study.rows[1][2:4] == [None, None]


# ---- the other models of the paper


@pytest.mark.parametrize(
    ("name", "times", "layers"), [("mistral-7b", A100_LLAMA3_8B, 32), ("llama2-70b", A40_LLAMA2_70B, 80)]
)
def test_a_step_of_published_products_takes_their_time(name, times, layers):
    cost = replace(HARDWARE[name].cost, pair=0.0)
    for tokens, seconds in times.seconds.items():
        assert cost.seconds(StepWork(tokens)) == pytest.approx(layers * seconds, rel=0.06)
    assert cost.seconds(StepWork(1)) == pytest.approx(layers * times.one_token)


def test_the_rule_for_targets_agrees_where_nothing_was_left_out():
    """Five decode steps are the strict target: it holds for one card, and less than half of it for cards that talk."""
    study = settings.run(PLAN)
    ours, rule = column(study, "decode"), [row[6] for row in study.rows]
    share = dict(zip(settings.MODELS, (a / b for a, b in zip(ours, rule, strict=True)), strict=True))
    assert share["mistral-7b"] == pytest.approx(1, abs=0.1) and share["llama2-70b"] < 0.5
    assert [row[-1] for row in study.rows][::2] == [None, None], "a prompt of these was not published"
    assert column(study, "prompt")[3] == 2 * 1150


def test_requests_in_stages_are_all_served():
    plan = StudyPlan(PLAN.names, "llama2-70b", requests=12, seeds=(0,))
    group = serve_in_stages(plan, "openchat", 1.0, 0, **options_of("Sarathi-Serve", "openchat"))
    latencies = group.recorder.latencies()
    assert (latencies.requests, latencies.failed, len(latencies.ttfts)) == (12, 0, 12)
    assert group.allocator.num_free == group.allocator.num_blocks == HARDWARE["llama2-70b"].num_blocks // 2
    alone = HARDWARE["llama2-70b"].cost.seconds(StepWork(decodes=1))
    assert latencies.gaps.min() >= alone, "a token takes both stages"


def test_a_larger_budget_leaves_more_bubbles(monkeypatch):
    monkeypatch.setattr(pipeline, "BUDGETS", (128, 2048))
    [[_, small, *_], [_, large, *_]] = pipeline.budgets(PLAN).rows
    assert 0 < small < large / 1.5


def test_capacities_by_target_compare_the_better_budget_with_the_best_vllm(monkeypatch):
    """Stand-ins: gaps of whole prompts grow with the rate; those of chunks do not, but a queue forms."""

    def trials(plan, trace, scheduler, budget, **others):
        return (lambda rate: (rate / 2, 0.0)) if scheduler == "vLLM" else (lambda rate: (0.15, 2 * rate))

    monkeypatch.setattr(latency_targets, "trials", trials)
    monkeypatch.setattr(latency_targets, "TARGETS", (0.1, 0.2, 2.0))
    study = latency_targets.run(StudyPlan(PLAN.names, "mistral-7b", seeds=(0,)))
    assert column(study, "chunks are ×") == [None, pytest.approx(2.5, abs=0.2), pytest.approx(0.25, abs=0.02)]
    assert column(study, "paper, ×") == [3.5, None, None]


def test_chunks_that_go_first_stop_every_answer():
    study = chunk_policies.sglang(PLAN)
    gaps = {(row[0], row[1]): row[-1] for row in study.rows}
    assert gaps[512, "chunks first"] > 5 * gaps[512, "mixed"]


def test_chunks_by_load_lie_between_the_budgets(monkeypatch):
    monkeypatch.setattr(chunk_policies, "RATES", (1.0,))
    monkeypatch.setattr(chunk_policies, "BUDGETS", (512, 2048))
    small, large, scaled = column(chunk_policies.load(PLAN), "P99 TBT")
    assert small < scaled < large


def test_the_guides_run_ends_its_memory_before_its_slots(monkeypatch):
    monkeypatch.setattr(guide, "ANSWER", 64)
    study = guide.run(StudyPlan(PLAN.names, requests=60, seeds=(0,)))
    at_once = HARDWARE[guide.MODEL].num_blocks * 16 // guide.PROMPT
    assert all(0 < most <= at_once < guide.SEQS for most in column(study, "at once"))
    assert all(preemptions >= 0 for preemptions in column(study, "preempted"))


COSTS = BlockCosts(0.5, {QUANTIZED: 0.03, MEMORY: 0.01, FOLDER: 0.02})


def test_messages_of_a_day_go_on_and_a_few_users_send_most():
    day = list(conversations.turns_of_day(500, seed=1))
    assert (
        day == list(conversations.turns_of_day(500, seed=1)) != list(conversations.turns_of_day(500, seed=2))
    )
    assert 3.5 < len(day) / 500 < 4.5
    texts = {}
    for turn in day:
        assert texts.get(turn.text, 0) < turn.prompt < turn.total <= conversations.LONGEST
        texts[turn.text] = turn.total
    assert len(texts) < len(day) / 4


def test_a_level_more_computes_less_and_every_token_is_counted():
    plan = replace(PLAN, requests=200)
    prompts = sum(turn.prompt for turn in conversations.turns_of_day(200, seed=0))
    computed = []
    for levels in ({}, {MEMORY: 80}, {MEMORY: 80, FOLDER: 4000}):
        tokens, ttfts = conversations.serve(plan, COSTS, 64, levels, seed=0)
        assert tokens.total() == prompts and tokens[POOL]
        assert {each for each in (QUANTIZED, MEMORY, FOLDER) if tokens[each]} == set(levels)
        seconds = {**COSTS.back, "computed": COSTS.compute, POOL: 0.0}
        assert sum(ttfts) == pytest.approx(sum(n / 128 * seconds[place] for place, n in tokens.items()))
        computed.append(tokens["computed"])
    assert computed[0] > computed[1] > computed[2]
    unlimited, _ = conversations.serve(plan, COSTS, 4000, {}, seed=0)
    assert unlimited["computed"] == computed[2]  # nothing was lost


def test_copies_that_take_longer_than_computing_are_not_made():
    slow = BlockCosts(0.01, {MEMORY: 0.02})
    tokens, _ = conversations.serve(replace(PLAN, requests=100), slow, 64, {MEMORY: 500}, seed=0)
    assert not tokens[MEMORY]


# ---- prompts elsewhere

LENGTHS = disaggregation.lengths_of(4)
SPECS = [*traffic(LENGTHS, 3.0, 48, seed=0)]
LOAD = Load(HARDWARE["yi-34b"], PLAN.names, SPECS, LENGTHS.most)


@pytest.mark.parametrize("split", [Split(1, 7), Split(3, 5)])
def test_every_token_of_a_prompt_but_the_last_is_sent_once(split):
    computed, sent = LOAD.computed(split), Counter()
    for each in computed:
        sent[each.request] += each.tokens
        assert each.time > SPECS[each.request].time
    assert sent == {number: spec.tokens - 1 for number, spec in enumerate(SPECS)}
    assert computed == sorted(computed) and max(each.tokens for each in computed) <= 2048
    assert {each.sender for each in computed} == {f"P{number}" for number in range(split.prefill)}


def test_a_request_whose_prompt_has_arrived_computes_its_last_token_and_after_a_preemption_all():
    table = table_of_arrived(PLAN.names)(PLAN.names.BlockAllocator(4, 4))
    assert (table.share([1]), table.share([1, 2, 3])) == (0, 2), "also after an admission that had no room"
    table.register([1, 2, 3], 3)
    table.release()
    assert table.share([1, 2, 3, 4]) == 0


def test_answers_whose_prompts_are_elsewhere_begin_after_them_and_wait_for_none():
    arrived = PLAN.names.arrivals(LOAD.computed(Split(5, 3)), LOAD.hardware.kv_bytes / 25e9)
    found, again = LOAD.decoded(arrived, 3), LOAD.decoded(arrived, 3)
    assert found.ttfts.tolist() == again.ttfts.tolist()
    waits = [arrived[number] - SPECS[number].time for number in range(0, 48, 3)]
    assert (found.requests, found.failed, len(found.ttfts)) == (16, 0, 16)
    assert all(ttft > wait for ttft, wait in zip(sorted(found.ttfts), sorted(waits), strict=True))
    assert found.longest_gap < LOAD.in_chunks(512, 8).longest_gap


def test_a_gaudi_is_faster_by_the_ratio_of_its_peaks():
    was, now = HARDWARE["mistral-7b"].cost, HARDWARE["gaudi2-mistral-7b"].cost
    assert was.token / now.token == pytest.approx(432 / 312) and was.overhead == now.overhead
    assert was.weights / now.weights == pytest.approx(was.read / now.read) == pytest.approx(2.46 / 1.935)
    assert HARDWARE["gaudi3-yi-34b"].num_blocks > HARDWARE["yi-34b"].num_blocks


WAYS = {
    "late": lambda rate: (2 * rate, 0.1),
    "a": lambda rate: (rate, 0.1),
    "b": lambda rate: (rate / 2, 0.3),
    "bursts": lambda rate: (0.0, rate / 10),
}


def test_the_best_way_is_the_highest_rate_within_both_promises(monkeypatch):
    promises = (0.05, 0.2, 0.3, 0.9)
    monkeypatch.setattr(disaggregation, "TBTS", promises)
    found = disaggregation.by_promise(WAYS)
    assert [best.name for best in found.values()] == ["bursts", "a", "b", "bursts"]
    for best, rate in zip(
        found.values(), (0.5, disaggregation.TTFT, 2 * disaggregation.TTFT, 9), strict=True
    ):
        assert best.rate <= 8 * rate < 1.06 * best.rate, "of eight devices, to 5 %"
    slower = disaggregation.by_promise({**WAYS, "a": lambda rate: (rate, 0.4), "b": WAYS["late"]}, found)
    assert [slower[tbt].rate < found[tbt].rate for tbt in promises] == [False, True, True, False]
    assert disaggregation.by_promise({"b": WAYS["b"]})[0.2].rate == 0


@pytest.mark.parametrize(
    ("chunks", "elsewhere", "place"),
    [((-1, -1, 1, 3), (-1, 0, 1, 2), 2), ((-1, 1, 1, 1), (-1, -1, 2, 2), None), ((1,) * 4, (2,) * 4, 3)],
)
def test_the_border_is_the_longest_promise_up_to_which_chunks_do_not_serve_more(
    monkeypatch, chunks, elsewhere, place
):
    monkeypatch.setattr(disaggregation, "TBTS", (0.1, 0.2, 0.4, 0.8))
    steps = zip((None, 25), (chunks, elsewhere), strict=True)
    ways = {
        link: {
            tbt: disaggregation.Best(step, "x" if step >= 0 else None)
            for tbt, step in zip(disaggregation.TBTS, each, strict=True)
        }
        for link, each in steps
    }
    assert disaggregation.border(ways, 25) == (None if place is None else disaggregation.TBTS[place])


def test_the_promise_decides_who_serves_more(monkeypatch):
    promises = (0.07, 0.4)
    few = {"RATIOS": (64,), "LINKS": (1, 400), "BUDGETS": (128, 1024), "TBTS": promises, "SHOWN": promises}
    for name, values in {**few, "SPLITS": (Split(6, 2),)}.items():
        monkeypatch.setattr(disaggregation, name, values)
    study = disaggregation.run(StudyPlan(PLAN.names, requests=6, seeds=(0,)))
    strict, relaxed = column(study, "400 GB/s, ×")
    assert strict > 1 > relaxed and all(slow < 1 for slow in column(study, "1 GB/s, ×"))
    assert [(curve.name, curve.points) for curve in study.chart.curves] == [("400 GB/s", [(64, 70)])]


def test_a_model_in_stages_is_refused(refused):
    line = refused(command.main, ["disaggregation", "--hardware", "llama2-70b"])
    assert "give one without stages" in line


def test_figures_of_the_paper_are_shown_beside_its_own_model(refused):
    other = StudyPlan(PLAN.names, "mistral-7b", requests=4, seeds=(0,))
    assert set(column(single_prompt.piggyback(other), "paper ms")) == {None}
    assert "the paper has no targets for it" in refused(
        command.main, ["capacity", "--hardware", "llama-3-8b"]
    )


# ---- simulator and engine


def run_of(ttft, tbt):
    return SimpleNamespace(ttft=lambda p: ttft, tbt=lambda p: tbt)


def test_the_agreement_reports_the_median_round_and_the_extremes():
    plan = agreement.AgreementPlan("ref", SimpleNamespace(name="mlx", device="cpu"), requests=7, rounds=3)
    rounds = [(run_of(1.0, 0.1), run_of(ttft, 0.1)) for ttft in (1.1, 1.4, 0.8)]
    study = agreement.study_of(plan, rounds)
    assert study.rows[0] == ["TTFT p50", 1000, 1100, *map(pytest.approx, (10, 15, -20, 40))]
    assert study.rows[2][3:5] == [0, 15] and study.rows[3][4] == 30


@pytest.mark.parametrize("backend", installed_backends())
def test_the_shipped_model_and_its_simulation_serve_the_same_requests(backend, monkeypatch, capsys):
    monkeypatch.setattr(agreement, "SHRINK", 64)
    monkeypatch.setattr(agreement, "LOAD", 4.0)
    command.main(
        ["--compare-engine", "--backend", backend, "--device", "cpu", "--requests", "4", "--rounds", "1"]
    )
    shown = capsys.readouterr().out
    assert f"Engine and simulator\ntiny-qwen3 on {backend}, cpu; 4 requests, 1 round" in shown
    assert [line.split()[0] for line in shown.splitlines() if " p50 " in line or " p99 " in line]


# ---- the command


def printed(result):
    console = Console(file=io.StringIO(), width=100)
    show(console, result)
    return console.file.getvalue()


@pytest.mark.parametrize("name", ["settings", "tiles", "overhead", "bubbles", "budget", "conversations"])
def test_a_study_is_the_same_in_every_run_and_survives_json(name, few_budgets):
    first, second = (STUDIES[name](PLAN).result({}, {}) for _ in range(2))
    assert first == second
    read = json.loads(json.dumps(first))
    assert printed(read) == printed(first) and read["title"] in printed(read)


def test_the_command_prints_writes_and_keeps(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(provenance, "RESULTS", tmp_path)
    monkeypatch.setattr(screens, "RESULTS", tmp_path)
    file = tmp_path / "figures" / "all.json"
    file.parent.mkdir()
    argv = ["tiles", "ablation", "--requests", "6", "--seeds", "1", "--json", str(file), "--save", "lab"]
    command.main(argv)
    shown = capsys.readouterr().out
    assert "Tile quantisation\n" in shown and "chunked-prefills-only" in shown
    assert [each["name"] for each in json.loads(file.read_text(encoding="utf-8"))] == ["tiles", "ablation"]
    found = dict(screens.benchmark_screens())
    assert set(found) == {"benchmark-lab-tiles", "lab-tiles", "benchmark-lab-ablation"}
    assert "pdm run lab tiles --requests 6 --seeds 1" in found["benchmark-lab-tiles"]
    drawing = ElementTree.fromstring(found["lab-tiles"])
    assert len(drawing.findall(".//{*}path[@class='line']")) == 4, "two curves and their samples below"


@pytest.mark.parametrize("name", ["../../x", "/tmp/x", ".x", "a/b", ""])
def test_a_result_stays_in_its_folder(name, refused):
    assert "is not a name" in refused(command.main, ["tiles", "--save", name])


def test_a_wrong_study_is_one_line(refused):
    assert "no study 'abalation': choose from settings, piggyback, tiles" in refused(
        command.main, ["abalation"]
    )
    assert set(ALL) < set(STUDIES)


def test_the_median_over_seeds_is_reported(few_budgets):
    plan = StudyPlan(PLAN.names, requests=12, seeds=(0, 1, 2))
    single = [
        latency_studies.budget(StudyPlan(PLAN.names, requests=12, seeds=(seed,))).rows[1][4]
        for seed in plan.seeds
    ]
    assert latency_studies.budget(plan).rows[1][4] == median(single)
