"""What is given of the scheduler of a pipeline: its ends. Day 3.7 tests the rest."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.pipeline import Pipeline
from tiny_llm_extensions.make_loop import make_loop
from tiny_llm_extensions.parallel import pipeline as stages
from tiny_llm_ref import serving


def test_a_call_that_fails_ends_the_requests_in_flight_and_no_others():
    pipeline = Pipeline(serving, model={"fails": {1: RuntimeError("gone")}}, max_num_seqs=2)
    made = [pipeline.add(8, 4), pipeline.add(8, 4), pipeline.add(8, 4)]
    pipeline.loop.step()
    with pytest.raises(RuntimeError, match="gone"):
        pipeline.loop.step()
    assert [one.error for one in made[:2]] == ["gone", "gone"]
    pipeline.finish()
    assert made[2].tokens == pipeline.answer_of(made[2]) and made[2].finish_reason == "length"
    assert pipeline.allocator.num_free == pipeline.allocator.num_blocks


def test_the_second_call_of_a_plan_is_over_when_the_first_cannot_be_submitted():
    """Its request runs on, and an abort ends it at once."""
    refused = {"refuses": {1: ConnectionError("gone")}, "places": 3}
    pipeline = Pipeline(serving, 1, model=refused, mixed_steps=False, max_num_batched_tokens=8)
    decoding, prompt = pipeline.add(3, 6), pipeline.add(16, 4)
    pipeline.loop.step()
    with pytest.raises(ConnectionError, match="gone"):
        for _ in range(5):
            pipeline.loop.step()
    survivor = decoding if prompt.is_done else prompt
    assert not survivor.is_done and {decoding.error, prompt.error} == {"gone", None}
    survivor.abort()
    assert survivor.is_done, "no call runs on it, so that nothing has to be waited for"


LOADS = st.lists(st.tuples(st.integers(1, 20), st.integers(1, 8)), min_size=1, max_size=6)


@given(LOADS, st.integers(2, 3), st.integers(8, 24), st.sets(st.integers(1, 90), max_size=5))
def test_what_a_listener_raises_leaves_micro_batches_in_flight(loads, stages, blocks, at):
    """It is raised by the step, and every request has its answer nevertheless."""
    pipeline, heard, raised = Pipeline(serving, stages, blocks), [], 0

    def listener(event):
        heard.append(event)
        if len(heard) in at:
            raise OSError("the reader hung up")

    pipeline.loop.events.listeners.append(listener)
    for load in loads:
        with suppress(OSError):
            pipeline.add(*load)
    for _ in range(500):
        if not pipeline.loop.has_work_remaining():
            break
        try:
            pipeline.loop.step()
        except OSError:
            raised += 1
        assert len(pipeline.loop.calls.in_flight) == len(pipeline.model.on_the_way)
    assert raised <= len(at)
    pipeline.check_answers()


@given(LOADS, LOADS, st.integers(2, 3), st.integers(8, 24), st.booleans(), st.integers(0, 20))
def test_after_abort_all_nothing_is_in_flight(loads, later, stages, blocks, caching, steps):
    """Later requests, in the blocks of the first ones, have the answers that they have alone."""
    pipeline = Pipeline(serving, stages, blocks, caching=caching)
    first = [pipeline.add(*load) for load in loads]
    for _ in range(steps):
        pipeline.loop.step()
    pipeline.loop.abort_all()
    assert all(one.is_done for one in first) and not pipeline.loop.has_work_remaining()
    assert not pipeline.model.on_the_way and pipeline.allocator.num_free == pipeline.allocator.num_blocks
    assert sum(event.kind == "finish" for event in pipeline.events) == len(first)
    second = [pipeline.add(*load) for load in later]
    pipeline.finish()
    assert [one.tokens for one in second] == [pipeline.answer_of(one) for one in second]


def test_closing_ends_everything():
    pipeline = Pipeline(serving)
    pipeline.add(30)
    pipeline.loop.step()
    pipeline.loop.close()
    assert pipeline.allocator.num_free == pipeline.allocator.num_blocks


def test_other_policies_have_no_stages():
    pipeline = Pipeline(serving)
    with pytest.raises(ValueError, match=r"policy is .slack.*give .hybrid"):
        make_loop(serving, "slack", pipeline.model, pipeline.allocator)
    made = make_loop(serving, "hybrid", pipeline.model, pipeline.allocator)
    assert isinstance(made.calls, stages.Pipeline)
