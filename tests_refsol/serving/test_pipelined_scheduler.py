"""What is given of the scheduler of a pipeline: its ends. Day 3.7 tests the rest."""

import pytest

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


def test_other_policies_have_no_stages():
    pipeline = Pipeline(serving)
    with pytest.raises(ValueError, match=r"policy is .slack.*give .hybrid"):
        make_loop(serving, "slack", pipeline.model, pipeline.allocator)
    made = make_loop(serving, "hybrid", pipeline.model, pipeline.allocator)
    assert isinstance(made.calls, stages.Pipeline)
