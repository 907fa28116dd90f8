"""What is given of the scheduler of a pipeline: its ends. Day 3.7 tests the rest."""

import pytest

from support.pipeline import Pipeline
from tiny_llm_ref import serving


def test_a_call_that_fails_ends_the_requests_in_flight_and_no_others():
    pipeline = Pipeline(serving, model={"fails": {1: RuntimeError("gone")}}, max_num_seqs=2)
    made = [pipeline.add(8, 4), pipeline.add(8, 4), pipeline.add(8, 4)]
    pipeline.scheduler.step()
    with pytest.raises(RuntimeError, match="gone"):
        pipeline.scheduler.step()
    assert [one.error for one in made[:2]] == ["gone", "gone"]
    pipeline.finish()
    assert made[2].tokens == pipeline.answer_of(made[2]) and made[2].finish_reason == "length"
    assert pipeline.allocator.num_free == pipeline.allocator.num_blocks


def test_closing_ends_everything():
    pipeline = Pipeline(serving)
    pipeline.add(30)
    pipeline.scheduler.step()
    pipeline.scheduler.close()
    assert pipeline.allocator.num_free == pipeline.allocator.num_blocks


def test_other_policies_have_no_stages():
    pipeline = Pipeline(serving)
    with pytest.raises(ValueError, match=r"policy is .slack.*give .hybrid"):
        serving.make_scheduler("slack", pipeline.model, pipeline.allocator)
    made = serving.make_scheduler("hybrid", pipeline.model, pipeline.allocator)
    assert isinstance(made, serving.PipelinedScheduler)
