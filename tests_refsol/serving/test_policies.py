"""The policies as products: names and options, real answers under every policy, and the whole starvation corpus."""

import io
from functools import cache

import pytest
from rich.console import Console

from support.served import Served
from tiny_llm_course.trace.incidents import table
from tiny_llm_course.trace.incidents.corpus import CORPUS, incident
from tiny_llm_course.trace.incidents.incident import Bound, IncidentCase, Sent, group
from tiny_llm_course.trace.incidents.incident_run import IncidentRun, failures
from tiny_llm_course.trace.incidents.table import broken_by
from tiny_llm_course.trace.simulation.step_cost import Line
from tiny_llm_extensions.policies.backfill import Backfill
from tiny_llm_lab.studies import incidents
from tiny_llm_lab.studies.catalogue import STUDIES
from tiny_llm_lab.studies.served import StudyPlan
from tiny_llm_lab.studies.study import show
from tiny_llm_ref import serving as s
from tiny_llm_ref.serving.policies.aged_queue import AgedQueue

STEP = 61.2  # ms of a full step of 512 tokens
PROFILE = s.StepProfile(Line(0.0, 1.0, 0.0), Line(0.0, 1.0, 0.0))  # the fake model: a second per token


class Loop(Served):
    """A policy on a fake model that checks every batch."""

    def __init__(self, name, /, **options):
        options = {"max_num_batched_tokens": 64, "max_num_seqs": 3, **options}
        if name == "slack":
            options = {"profile": PROFILE, "latency_target": 16.0, "tile": 4, **options}
        super().__init__(s, 24, policy=name, model={"ends": 9}, **options)

    def add(self, prompt, max_tokens=12, priority="interactive"):
        return super().add(prompt, max_tokens=max_tokens, priority=priority)

    def finish(self):
        while self.loop.has_work_remaining():
            assert self.loop.step() or not self.loop.has_work_remaining()


def test_an_unknown_name_is_refused_with_those_that_exist():
    with pytest.raises(
        ValueError, match=r"policy is 'fifo': give one of hybrid, separate, static, .*, slack"
    ):
        Loop("fifo")


WHOLE = {"enable_chunked_prefill": False, "max_num_batched_tokens": 63}
CHUNKER = {"chunker": s.AdaptiveChunker(), "max_num_batched_tokens": 512}


@pytest.mark.parametrize(
    ("policy", "options", "message"),
    [
        ("hybrid", {"max_num_seqs": 0}, "max_num_seqs is 0: give at least 1"),
        ("hybrid", {"max_num_batched_tokens": 2}, "max_num_batched_tokens is 2 and max_num_seqs 3: each"),
        ("hybrid", WHOLE, "max_num_batched_tokens is 63 and max_model_len 64: without chunks"),
        ("hybrid", CHUNKER, "the chunker's largest size 512 and 3 decodes have to fit, so give at least 515"),
        ("orca", {"max_num_batched_tokens": 63}, "the longest prompt is one step"),
        ("paced", {"decodes_between": 0}, "give at least 1"),
        ("slack", {"latency_target": 0}, "give seconds above 0"),
        ("slack", {"latency_target": 6.0}, "3 decodes and 4 tokens of a prompt take 7.0000 seconds"),
        ("slack", {"tile": 0}, "tile is 0"),
        ("slack", {"tile": 65}, "give 1 to 64 tokens"),
        ("slack", {"ageing": 0}, "wait for ever"),
        ("slack", {"batch_delay": -1}, "batch_delay is -1"),
        ("slack", {"max_partial_prefills": 0}, "at least 1"),
        ("slack", {"long_prefill_threshold": 0}, "at least 1"),
        ("slack", {"max_preemptions": -1}, "at least 0"),
    ],
)
def test_options_out_of_range_are_refused_with_the_way_out(policy, options, message):
    with pytest.raises(ValueError, match=message):
        Loop(policy, **options)


@pytest.mark.parametrize("wrong", ["plan_decodes", "plan_prompts"])
def test_a_request_that_is_planned_twice_is_named(wrong):
    """Without this check its second entry fails later, with a message about blocks or rows."""
    loop = Loop("sarathi", max_num_batched_tokens=8)

    def plan_step(plan):
        for _ in range(2):
            getattr(loop.scheduler, wrong)(plan)

    # The second one waits: where all running ones are planned and nobody waits, no prompt is looked for.
    loop.add(b"ab" * 20)
    loop.add(b"ab" * 20)
    for _ in range(6 if wrong == "plan_decodes" else 1):
        loop.loop.step()
    loop.scheduler.plan_step = plan_step
    with pytest.raises(
        ValueError, match="request 0 is planned twice in one step: `plan_step` adds one entry"
    ):
        loop.loop.step()


def test_static_batching_delivers_a_batch_as_a_whole():
    """The short answer has its tokens early, and leaves with the long one; nobody joins meanwhile."""
    ends = []
    loop = Loop("static", on_event=lambda event: event.kind == "finish" and ends.append(event.time))
    loop.model.ends = 0
    short, long = loop.add(b"ab", 2), loop.add(b"cd", 9)
    loop.loop.step()
    late = loop.add(b"ef", 1)
    for _ in range(4):
        loop.loop.step()
    assert short.is_done and not long.is_done and not ends and not late.tokens
    loop.finish()
    assert ends[0] == ends[1] < ends[2]


# ---- the corpus


def test_the_slack_scheduler_passes_every_incident():
    assert {number: found for number, found in broken_by(s, "slack").items() if found} == {}


def test_every_incident_has_a_thread_and_says_why():
    assert len(CORPUS) >= 20 and len({one.number for one in CORPUS}) == len(CORPUS)
    for one in CORPUS:
        assert one.threads and all(thread.count("/") == 1 and "#" in thread for thread in one.threads), (
            one.number
        )
        assert one.mechanism.endswith(".") and all(case.bounds for case in one.cases)


def test_the_lab_shows_every_incident_and_policy(monkeypatch):
    """Of a few incidents: all under every policy take four seconds."""
    few = CORPUS[:6]
    for module in (table, incidents):
        monkeypatch.setattr(module, "CORPUS", few)
    monkeypatch.setattr(table, "broken_by", cache(broken_by.__wrapped__))
    study = STUDIES["incidents"](StudyPlan(s))
    assert [row[0] for row in study.rows] == [one.number for one in few]
    assert {len(row) for row in study.rows} == {len(study.columns)} == {2 + len(s.POLICIES)}
    assert {row[-1] for row in study.rows} == {"✓"}
    console = Console(file=io.StringIO(), width=80)
    show(console, study.result({}, {}))
    assert len(console.file.getvalue().splitlines()) < len(few) + 8, "a line per incident"


@pytest.mark.parametrize(
    ("policy", "number", "measure"),
    [
        ("prefill-first", 1, "gap of A: 2,410"),
        ("decode-first", 7, "ttft of s: 20,022"),
        ("sarathi", 4, "ttft of s: 1,878"),
        ("sarathi", 13, "ttft of vip: 4,918"),
    ],
)
def test_simple_policies_break_the_bounds_as_reported(policy, number, measure):
    """The figures of the first, independent simulation of these traces."""
    assert any(measure in found for found in failures(s, policy, incident(number)))


def test_no_single_rule_passes_both_of_a_pair(monkeypatch):
    """Each cure alone breaks its counterpart: passing freely, stopping at the first, short first without ageing."""

    def broken(*numbers):
        return [number for number in numbers if failures(s, "slack", incident(number))]

    with monkeypatch.context() as patch:
        patch.setattr(Backfill, "_may_pass", lambda self, sequence: True)
        assert broken(17, 18) == [18]
    with monkeypatch.context() as patch:
        patch.setattr(Backfill, "_may_pass", lambda self, sequence: self.blocked is None)
        assert broken(17, 18) == [17]
    with monkeypatch.context() as patch:
        patch.setattr(AgedQueue, "key", lambda self, one: one.num_uncomputed + 1e-6 * one.waiting_since)
        assert broken(4, 19) == [19]
    assert [n for n in (4, 19) if failures(s, "sarathi", incident(n))] == [4, 19]


# ---- traces that are in no list


@pytest.mark.parametrize("at", [60, 777, 1_500])
def test_a_short_prompt_waits_three_steps_whenever_it_comes(at):
    """Also behind two long ones, of which the older has aged."""
    requests = (*group(2, Sent("L", 0, 16_384, 4), every=10), Sent("s", at, 200, 4))
    assert not IncidentRun(s, "slack", IncidentCase(requests, (Bound("ttft", "s", 3 * STEP),))).broken()


@pytest.mark.parametrize("at", [50, 9_000])
def test_an_urgent_request_finds_its_blocks_whenever_it_comes(at):
    """Batch requests hold all memory. Who is preempted for a block has no decode in the same plan."""
    requests = (*group(4, Sent("b", 0, 400, 900, priority="batch")), Sent("vip", at, 600, 10))
    bounds = (Bound("ttft", "vip", 3 * STEP), Bound("preemptions", "vip", 0))
    assert not IncidentRun(s, "slack", IncidentCase(requests, bounds, blocks=170)).broken()


def test_max_preemptions_of_0_turns_preemption_by_class_off():
    case = incident(13).cases[0]
    run = IncidentRun(s, "slack", case, max_preemptions=0)
    assert run.preemptions("*") == 0 and run.ttft("vip") > 4_000


def test_a_batch_request_is_not_starved_by_endless_interactive_ones():
    requests = (Sent("b", 0, 3_000, 50, priority="batch"), *group(300, Sent("i", 5, 300, 5), every=40))
    case = IncidentCase(requests, (Bound("end", "b", 16_000),), options={"max_num_seqs": 4})
    assert not IncidentRun(s, "slack", case).broken()


def test_a_small_rest_of_a_prompt_does_not_make_a_pause_longer_than_the_target():
    """With steps of one kind, two tokens that are left after a whole chunk wait for the decodes."""
    requests = (Sent("A", 0, 16, 100), Sent("L", 50, 514, 1), Sent("M", 50, 1_026, 1))
    case = IncidentCase(requests, (Bound("gap", "A", 75),), target=75, options={"mixed_steps": False})
    assert not IncidentRun(s, "slack", case).broken()
