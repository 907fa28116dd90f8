"""The lab's simulator: virtual time, arrivals, skipped stretches, latencies, and what a packed step costs."""

from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tiny_llm_course.trace.recorder import Recorder
from tiny_llm_course.trace.simulation.cost_fit import fit_steps
from tiny_llm_course.trace.simulation.simulator import Simulation, StuckScheduler
from tiny_llm_course.trace.simulation.step_cost import (
    INCIDENTS,
    AdditiveCost,
    Line,
    RooflineCost,
    StepWork,
    pairs,
)
from tiny_llm_course.trace.trace import percentile
from tiny_llm_course.trace.workload import SHORT, RequestSpec
from tiny_llm_engine.solutions.solution import resolve_serving
from tiny_llm_extensions.make_loop import make_loop
from tiny_llm_lab.latency_recorder import LatencyRecorder, weighted_percentile
from tiny_llm_lab.step_samples import EngineClock, StepSamples

SERVING = resolve_serving("ref")
ROOFLINE = RooflineCost(overhead=0.009, token=0.0002, pair=1e-8, weights=0.04, read=1e-6, tile=8)
SUM = AdditiveCost.of_terms(0.010, 0.0001, 1e-7, 0.0003, 1e-6)


def spec(time, tokens, answer, **others):
    return RequestSpec(SHORT, tokens, answer, time=time, **others)


def simulated(specs, cost=INCIDENTS, recorder=None, **options):
    simulation = Simulation(SERVING, cost, recorder=recorder or LatencyRecorder(), **options)
    simulation.send_all(iter(specs))
    return simulation.run()


# ---- what a step costs


class KeepsBatches(SERVING.HybridScheduler):
    """Notes the plans of its steps as they were packed."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.works = []

    def calls(self, plan):
        found = super().calls(plan)
        self.works += [StepWork.of_batch(SERVING.pack(call)) for call in found]
        return found


def test_the_work_of_a_step_counts_chunks_and_decodes_apart():
    specs = [spec(0, 3, 5), spec(0.005, 10, 1)]
    found = simulated(specs, policy=KeepsBatches, max_num_batched_tokens=6, max_num_seqs=2)
    first, second, third = found.loop.scheduler.works[:3]
    assert first == StepWork(chunk_tokens=3, chunk_pairs=pairs(3, 0))
    assert second == StepWork(5, pairs(5, 0), 0, 1, 4), "the token at position 3 sees itself and three others"
    assert third == StepWork(5, pairs(5, 5), 5, 1, 5)


def test_both_costs_are_what_their_terms_say():
    work = StepWork(chunk_tokens=5, chunk_pairs=40, chunk_past=7, decodes=2, decode_pairs=30)
    assert AdditiveCost.of_terms(1, 10, 100, 1000, 10_000).seconds(work) == 1 + 50 + 4000 + 2000 + 300_000
    math = RooflineCost(overhead=1, token=10, pair=1, weights=0, read=0, tile=4)
    assert math.seconds(work) == 1 + 10 * 8 + 70, "7 tokens are two tiles of 4"
    memory = RooflineCost(overhead=1, token=0, pair=0, weights=100, read=1)
    assert memory.seconds(work) == 1 + 100 + 37


@pytest.mark.parametrize("cost", [INCIDENTS, SUM, ROOFLINE])
def test_a_stretch_costs_what_its_steps_cost(cost):
    work = StepWork(decodes=3, decode_pairs=100)
    one_by_one = [cost.seconds(StepWork(decodes=3, decode_pairs=100 + 3 * step)) for step in range(9)]
    assert np.broadcast_to(cost.seconds(work.stretch(9)), 9).tolist() == one_by_one


# ---- virtual time


def test_two_requests_take_the_time_that_one_works_out_by_hand():
    recorder = Recorder(512, ["a", "b"])
    simulation = Simulation(SERVING, recorder=recorder)
    simulation.send(spec(1.0, 100, 3), 0)
    simulation.send(spec(1.015, 50, 1), 1)
    simulation.run()
    a, b = recorder.trace().lanes
    # a's prompt takes 10 + 10 ms; b arrives meanwhile, and is computed beside a's second token in 10 + 5 ms.
    assert a.token_times == pytest.approx([0.020, 0.035, 0.045])
    assert (b.arrival_time, b.token_times) == (pytest.approx(0.015), pytest.approx([0.035]))
    assert simulation.steps == simulation.model.calls == 3


def test_an_action_happens_between_two_steps_and_can_abort():
    simulation = Simulation(SERVING)
    endless, later = simulation.send(spec(0, 16, 10**6), 0), simulation.send(spec(0.5, 16, 2), 1)
    simulation.at(0.3, endless.abort)
    simulation.run()
    assert (endless.finish_reason, later.finish_reason) == ("abort", "length")
    assert (
        25 <= len(endless.tokens) <= 30 and simulation.allocator.num_free == simulation.allocator.num_blocks
    )


def test_a_run_ends_at_a_time():
    simulation = Simulation(SERVING, recorder=LatencyRecorder())
    simulation.send(spec(0, 16, 10**6), 0)
    simulation.run(until=2.0)
    assert 2.0 <= simulation.clock.now < 2.02 and simulation.skipped > 150


def test_a_scheduler_that_plans_nothing_is_reported():
    class Idle(SERVING.HybridScheduler):
        def plan_step(self, plan):
            pass

    with pytest.raises(StuckScheduler, match=r"1 request waiting and 0 running, and the plan is empty"):
        simulated([spec(0, 4, 4)], policy=Idle)


# ---- jumps


REQUESTS = st.lists(
    st.tuples(st.integers(0, 300), st.integers(1, 60), st.integers(1, 60)), min_size=1, max_size=8
)


@settings(deadline=None, max_examples=30)
@given(
    requests=REQUESTS,
    cost=st.sampled_from([INCIDENTS, SUM, ROOFLINE]),
    blocks=st.integers(31, 80),
    budget=st.integers(4, 40),
)
@example(requests=[(0, 9, 60), (1, 9, 60), (2, 60, 60)], cost=ROOFLINE, blocks=31, budget=4)
def test_skipping_equals_stepping(requests, cost, blocks, budget):
    """Also when requests arrive during a stretch, and when blocks are so few that running ones are preempted."""
    specs = sorted((spec(ms / 100, tokens, answer) for ms, tokens, answer in requests), key=lambda s: s.time)
    options = {"num_blocks": blocks, "block_size": 4, "max_num_batched_tokens": budget, "max_num_seqs": 4}
    jumped, stepped = (simulated(specs, cost, jump=jump, **options) for jump in (True, False))
    assert stepped.skipped == 0
    assert (jumped.steps, jumped.model.calls) == (stepped.steps, stepped.model.calls)
    assert jumped.clock.now == stepped.clock.now
    ours, theirs = jumped.recorder.latencies(), stepped.recorder.latencies()
    assert (ours.tokens, ours.requests, ours.failed) == (theirs.tokens, theirs.requests, theirs.failed)
    assert sorted(ours.ttfts) == sorted(theirs.ttfts)
    assert histogram(ours) == histogram(theirs)
    assert jumped.allocator.num_free == jumped.allocator.num_blocks


def histogram(latencies):
    found = Counter()
    for gap, weight in zip(latencies.gaps, latencies.weights, strict=True):
        found[gap] += weight
    return found


PROFILE = SERVING.StepProfile(Line(0.010, 0.0001, 0), Line(0.010, 0, 0))


@pytest.mark.parametrize("policy", sorted(set(SERVING.POLICIES) - {"paced"}))
def test_skipping_equals_stepping_under_every_policy_that_counts_no_steps(policy):
    def made(model, allocator, **options):
        if policy == "slack":
            options |= {"profile": PROFILE, "latency_target": 0.020, "tile": 16}
        return make_loop(SERVING, policy, model, allocator, **options)

    specs = [spec(number / 9, 10 + 53 * number % 160, 5 + 17 * number % 50) for number in range(20)]
    options = {"max_num_batched_tokens": 256, "max_num_seqs": 4, "max_model_len": 256, "num_blocks": 40}
    jumped, stepped = (simulated(specs, SUM, loop=made, jump=jump, **options) for jump in (True, False))
    assert jumped.skipped > 10 and stepped.skipped == 0
    ours, theirs = jumped.recorder.latencies(), stepped.recorder.latencies()
    assert jumped.clock.now == stepped.clock.now and jumped.steps == stepped.steps
    assert histogram(ours) == histogram(theirs) and sorted(ours.ttfts) == sorted(theirs.ttfts)


def test_long_answers_are_mostly_skipped():
    found = simulated([spec(0, 10, 2000), spec(0.5, 10, 2000)])
    assert found.skipped > 0.99 * found.steps > 1900


def test_nothing_is_skipped_while_somebody_listens():
    events = []
    found = simulated([spec(0, 10, 50)], on_event=events.append)
    assert found.skipped == 0 and [e.kind for e in events].count("token") == 50


# ---- latencies


def test_latencies_are_those_of_the_trace():
    specs = [spec(0.0, 700, 30), spec(0.05, 2000, 20), spec(0.3, 40, 9), spec(0.3, 90, 1)]
    trace, summary = Recorder(512), LatencyRecorder()

    class Both:
        def arrive(self, *arguments):
            trace.arrive(*arguments)
            summary.arrive(*arguments)

        def __call__(self, event):
            trace(event)
            summary(event)

    simulated(specs, recorder=Both(), max_num_seqs=3)
    lanes, found = trace.trace(), summary.latencies()
    for p in (1, 50, 99, 100):
        assert found.tbt(p) == pytest.approx(percentile(lanes.gaps, p))
        assert found.ttft(p) == pytest.approx(percentile([lane.ttft for lane in lanes.lanes], p))
    assert (found.tokens, found.requests, found.failed) == (60, 4, 0)
    assert found.longest_gap == pytest.approx(lanes.longest_gap) and found.delay(100) > 0.05


@settings(deadline=None, max_examples=30)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 5)), min_size=1), st.integers(1, 100))
def test_a_weighted_percentile_is_that_of_the_values_written_out(groups, p):
    values, weights = (np.array(each, dtype=float) for each in zip(*groups, strict=True))
    assert weighted_percentile(values, weights, p) == percentile(np.repeat(values, weights.astype(int)), p)


# ---- profiles


def test_a_profile_finds_the_costs_of_the_steps_it_has_seen():
    samples = None

    def listening(*arguments, **options):
        nonlocal samples
        samples = StepSamples(options["clock"])
        metrics = SimpleNamespace(on_event=samples)
        return make_loop(SERVING, "hybrid", *arguments, **options, metrics=metrics)

    specs = [spec(number / 50, 10 + 37 * number % 90, 5 + 11 * number % 30) for number in range(20)]
    simulated(specs, SUM, loop=listening, max_num_batched_tokens=64, max_num_seqs=6, jump=False)
    assert len(samples.samples) > 50
    found = fit_steps(samples.samples)
    for ours, theirs in ((found.prefill, SUM.prefill), (found.decode, SUM.decode)):
        assert vars(ours) == pytest.approx(vars(theirs), rel=1e-6)


def test_a_step_counts_from_the_end_of_the_last_one_or_of_a_wait():
    clock = SimpleNamespace(woke=0.0)
    samples = StepSamples(clock)
    chunk = SimpleNamespace(kind="chunk", tokens=4, context=2, requests=())
    samples(SimpleNamespace(kind="step", time=1.0, parts=(chunk,)))
    samples(SimpleNamespace(kind="token", time=1.1))
    samples(SimpleNamespace(kind="step", time=1.5, parts=(chunk,)))
    clock.woke = 7.0
    samples(SimpleNamespace(kind="step", time=7.25, parts=(chunk,)))
    assert [taken for _, taken in samples.samples] == [1.0, 0.5, 0.25]
    assert samples.samples[0][0] == StepWork(4, pairs(4, 2), 2)


def test_an_engines_clock_counts_its_own_work_and_jumps_where_it_would_wait():
    seconds = iter([10.0, 11.5, 20.0, 20.25, 20.5, 21.0])
    clock = EngineClock(lambda: next(seconds))
    with clock:
        pass
    assert clock() == 1.5, "what happens in between is not its work"
    with clock:
        clock.wait_until(7.0)
        assert clock.woke == 7.25
    assert clock() == 7.75
    clock.wait_until(3.0)
    assert clock() == clock.woke == 7.75, "a moment that is over is not waited for"
