"""Several answers to one prompt: a parent and its children, on a model that checks every batch; then on both ports."""

import contextlib
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.served import Served, sequence
from tiny_llm_course.trace.simulation.step_cost import Line
from tiny_llm_engine.llm_engine import ParallelSampling
from tiny_llm_extensions.llm import LLM
from tiny_llm_ref import serving as s
from tiny_llm_ref.serving import SamplingParams

PROMPT = "abcdefghij"


class Loop(Served):
    """A `Served` whose requests have several answers."""

    def __init__(self, policy="hybrid", *arguments, **options):
        options = {"max_num_batched_tokens": 16, "caching": True, **options}
        super().__init__(s, *arguments, policy=policy, **options)
        self.parallel = ParallelSampling(self.loop.enqueue)

    def add(self, prompt=PROMPT, count=1, max_tokens=5, **options):
        """A prompt with this many answers."""
        numbers = range(len(self.sequences), len(self.sequences) + count)
        made = [sequence(s, prompt, request_id=n, max_tokens=max_tokens, **options) for n in numbers]
        self.sequences += made
        self.parallel.add(made)
        return made

    def step(self):
        try:
            return self.loop.step()
        finally:
            self.parallel.release()

    @property
    def has_work(self):
        return bool(len(self.parallel)) or self.loop.has_work_remaining()

    def finish(self):
        for _ in range(500):
            if not self.has_work:
                return
            self.step()
        raise AssertionError("500 steps: an answer never ends")

    def prompt_rows(self):
        """Rows of prompts that the model has computed; all prompts are as long as PROMPT."""
        return sum(position < len(PROMPT) for batch in self.model.batches for position in batch.positions)

    def check(self, *made):
        """Every one of these has the answer of a request alone; every block is free, and nobody is held."""
        for one in made or self.sequences:
            assert one.tokens == self.answer_of(one)
        assert self.allocator.num_free == self.allocator.num_blocks
        assert not self.scheduler.running and not self.has_work
        for one in self.sequences:
            story = self.story(one)
            assert story[0] == "arrive" and story[-1] == "finish" and story.count("finish") == 1, story


@pytest.mark.parametrize(("block_size", "rows"), [(4, 10 + 3 * 2), (5, 10 + 3 * 5), (16, 4 * 10)])
@pytest.mark.parametrize(("policy", "max_tokens"), [("hybrid", 5), ("separate", 5), ("hybrid", 1)])
def test_children_compute_what_is_behind_the_full_blocks_of_the_prompt(policy, max_tokens, block_size, rows):
    """Also if one token is all they want: the parent has ended in the step that computed the prompt."""
    loop = Loop(policy, block_size=block_size)
    made = loop.add(count=4, max_tokens=max_tokens)
    loop.finish()
    assert loop.prompt_rows() == rows
    assert [one.num_cached for one in made] == [0, *[(10 - 1) // block_size * block_size] * 3]
    loop.check()


def test_without_a_prefix_cache_every_child_computes_the_prompt():
    loop = Loop(caching=False)
    loop.add(count=4)
    loop.finish()
    assert loop.prompt_rows() == 4 * len(PROMPT)
    loop.check()


def test_children_are_held_until_their_parent_has_a_token():
    """In the middle of the prompt they would compute it too. They have waited as long as their parent."""
    loop = Loop(max_num_batched_tokens=4)
    parent, *children = loop.add(count=3)
    for held in (2, 2, 0):
        loop.step()
        assert (len(loop.parallel), bool(parent.tokens)) == (held, not held)
    assert [one.waiting_since for one in children] == [parent.waiting_since] * 2
    arrived = [event.time for event in loop.events if event.kind == "arrive"]
    assert arrived == [parent.waiting_since] * 3, "their first token is late by the prompt as well"
    loop.finish()
    loop.check()


def test_children_go_before_those_that_have_arrived_later():
    """Their turn is their parent's, and the blocks of their prompt may be evicted while they wait."""
    loop = Loop(max_num_seqs=2)
    parent, *children = loop.add(count=3)
    later = [*loop.add("x" * 10), *loop.add("y" * 10)]
    loop.finish()
    begun = [event.request for event in loop.events if event.kind == "prefill"]
    assert begun[0] is parent and [one for one in begun if one in children] == children
    assert begun.index(later[1]) > begun.index(children[1])
    loop.check()


def test_a_parent_that_stops_before_its_first_token_makes_the_next_child_the_parent():
    loop = Loop(model={"answers": {PROMPT: ""}})
    made = loop.add(count=3)
    loop.finish()
    assert [(one.finish_reason, one.tokens) for one in made] == [("stop", [])] * 3
    loop.check()


def test_a_failed_call_of_a_prompt_ends_one_answer():
    """The next child computes the prompt, and the others find it."""
    loop = Loop(max_num_batched_tokens=8, model={"fails": {1: OSError("lost")}})
    made = loop.add(count=3)
    loop.step()
    with pytest.raises(OSError):
        loop.step()
    assert loop.has_work, "two answers are to come"
    loop.finish()
    assert [one.finish_reason for one in made] == ["error", "length", "length"]
    loop.check(*made[1:])


def test_what_can_never_be_served_ends_all_of_its_answers():
    loop = Loop(num_blocks=2)
    made = loop.add(count=3, max_tokens=1)
    for one in made:
        one.fail("too long")  # as the engine has found out before
    loop.finish()
    assert [loop.story(one) for one in made] == [["arrive", "finish"]] * 3 and not loop.model.batches


def test_close_ends_the_children_that_are_held():
    loop = Loop()
    made = loop.add(count=3)
    loop.parallel.close()
    loop.loop.close()
    assert all(one.finish_reason == "abort" for one in made) and not len(loop.parallel)
    assert loop.allocator.num_free == loop.allocator.num_blocks


@settings(max_examples=100, deadline=None)
@given(data=st.data(), policy=st.sampled_from([*s.POLICIES, "hybrid", "separate"]))
def test_random_loads_lose_no_answer(data, policy):
    """In little memory, with few places, aborts, and calls and listeners that fail: no answer ends but by itself, by
    its own abort, or in a call that failed, and one that ends by itself is that of a request alone."""
    failing, raising = (data.draw(st.sets(st.integers(0, most), max_size=2)) for most in (30, 90))
    options = {"max_num_batched_tokens": 64, "max_num_seqs": 3}
    if policy == "slack":
        profile = s.StepProfile(Line(0.0, 1.0, 0.0), Line(0.0, 1.0, 0.0))
        options |= {"profile": profile, "latency_target": 16.0, "tile": 4}
    if policy in s.POLICIES:
        options["mixed_steps"] = data.draw(st.booleans())
    model = {"ends": 7, "fails": dict.fromkeys(failing, OSError("lost"))}
    loop = Loop(
        policy, data.draw(st.integers(8, 20)), caching=data.draw(st.booleans()), model=model, **options
    )

    def listener(event):
        if len(loop.events) in raising:
            raise OSError("hung up")

    loop.listener = listener
    for letter in "abcdef":
        prompt = "same begin"[: data.draw(st.integers(1, 10))] + letter * data.draw(st.integers(0, 8))
        made = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 9))
        with contextlib.suppress(OSError):
            loop.add(prompt, *made, priority=data.draw(st.sampled_from(["interactive", "batch"])))
    aborted = set()
    for _ in range(600):
        if data.draw(st.integers(0, 9)) == 0:
            aborted.add(one := data.draw(st.sampled_from(loop.sequences)))
            one.abort()
        with contextlib.suppress(OSError):
            loop.step()
        if not loop.has_work:
            break
    batches = loop.model.batches
    ended = {why: {one for one in loop.sequences if one.finish_reason == why} for why in ("abort", "error")}
    assert ended["abort"] <= aborted and {one.error for one in ended["error"]} <= {"lost"}
    assert len(ended["error"]) <= sum(len(batches[n].context_lens) for n in failing if n < len(batches))
    loop.check(*(one for one in loop.sequences if one not in ended["abort"] | ended["error"]))


# ---- on both ports

WARM = SamplingParams(temperature=1.5, max_tokens=8, seed=11, ignore_eos=True)
SMALL = {"block_size": 8, "num_blocks": 96, "max_model_len": 256, "max_num_seqs": 8}


@pytest.fixture
def make(loaded):
    return lambda **options: LLM.of(*loaded, **{**SMALL, **options})


def tokens_of(outputs):
    return [list(answer.token_ids) for output in outputs for answer in output.outputs]


@pytest.mark.parametrize(
    ("caching", "options"),
    [(False, {}), (True, {"num_blocks": 10}), (True, {"bucketing_strategy": "exponential"})],
    ids=str,
)
def test_n_answers_equal_n_requests_of_their_numbers(make, caching, options):
    """With and without the cache, with preemptions, and padded: the seed and the number say which tokens come."""
    ids = [*range(100, 121)]
    alone = make(max_num_seqs=1, enable_prefix_caching=False)
    expected = tokens_of(alone.generate([ids], replace(WARM, sample_index=index))[0] for index in range(5))
    llm = make(enable_prefix_caching=caching, **options)
    outputs = llm.generate([ids, ids[:9]], [replace(WARM, n=5), replace(WARM, n=2)])
    assert tokens_of(outputs[:1]) == expected
    assert [answer.index for answer in outputs[0].outputs] == [*range(5)] and len({*map(tuple, expected)}) > 1
    assert tokens_of(outputs[1:]) == tokens_of(alone.generate([ids[:9]], replace(WARM, n=2)))
    assert llm.engine.num_open == llm.engine.num_waiting == 0
    if "num_blocks" in options:
        assert outputs[0].metrics.num_preemptions or outputs[1].metrics.num_preemptions


def test_children_are_seen_while_their_parent_computes_the_prompt(make):
    """One request with three answers to come, for `has_work_remaining` and for whoever counts those that wait."""
    engine = make(max_num_batched_tokens=16).engine
    request = engine.request(None, [*range(100, 140)], replace(WARM, n=3))
    engine.add(request)
    engine.step()
    assert (engine.num_open, engine.num_waiting) == (3, 2)
    request.abort()
    while engine.has_work_remaining():
        engine.step()
    assert request.is_done and engine.num_open == engine.num_waiting == 0
    assert engine.allocator.num_free == engine.allocator.num_blocks


def test_a_prompt_that_never_fits_has_its_reason_in_every_answer(make):
    [output] = make().generate([[1] * 300], replace(WARM, n=3))
    assert [answer.finish_reason for answer in output.outputs] == ["error"] * 3
    assert "max_model_len" in output.error
