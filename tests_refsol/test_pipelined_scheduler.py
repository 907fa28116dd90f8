"""The scheduler of a pipeline: several micro-batches in flight, in exact traces and under random loads."""

from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.fake_model import ByteTokenizer
from tiny_llm_kit.course.fakes.fake_packed_model import FakePackedModel
from tiny_llm_ref.serving import (
    BlockAllocator,
    HybridScheduler,
    PipelinedScheduler,
    Sampled,
    SamplingParams,
    Sequence,
    make_scheduler,
    stage_layers,
)


class FakeStages(FakePackedModel):
    """Computes a batch when it is submitted, and keeps the tokens until they are collected.

    So whatever the scheduler does in between, it does while the batch is on its way.
    """

    def __init__(self, *arguments, num_stages=2, **options):
        super().__init__(*arguments, **options)
        self.num_stages, self.on_the_way, self.most = num_stages, deque(), 0

    def submit(self, batch):
        try:
            found = self.run(batch)
        except RuntimeError as error:
            found = error
        self.on_the_way.append(found)
        self.most = max(self.most, len(self.on_the_way))
        assert self.most <= self.num_stages, "more micro-batches than stages"

    def collect(self):
        found = self.on_the_way.popleft()
        if isinstance(found, RuntimeError):
            self.on_the_way.clear()
            raise found
        return found


class Pipeline:
    """A scheduler, its blocks, and its model."""

    def __init__(self, num_stages=2, num_blocks=64, block_size=4, *, caching=False, model=None, **options):
        self.allocator = BlockAllocator(num_blocks, block_size, watermark=0, enable_prefix_caching=caching)
        self.model = FakeStages(self.allocator, Sampled, num_stages=num_stages, **(model or {}))
        self.events, self.sequences = [], []
        options = {"max_num_batched_tokens": 8, "max_num_seqs": 8, **options}
        self.scheduler = PipelinedScheduler(
            self.model, self.allocator, clock=self.model.clock, on_event=self.events.append, **options
        )

    def add(self, size, max_tokens=4):
        prompt = [(7 * len(self.sequences) + token) % 250 for token in range(size)]
        made = Sequence(
            prompt,
            ByteTokenizer(),
            request_id=len(self.sequences),
            sampling=SamplingParams(max_tokens=max_tokens, ignore_eos=True),
            max_seq_len=64,
        )
        self.sequences.append(made)
        self.scheduler.add(made)
        return made

    def finish(self):
        for _ in range(500):
            if not self.scheduler.has_work_remaining():
                return
            self.scheduler.step()
        pytest.fail("work remains after 500 steps")

    def is_alone(self, made):
        return made.tokens == self.model.answer_alone(made.prompt_tokens, made.max_new_tokens)

    def sizes(self):
        """The chunks of each micro-batch, in the order of submission."""
        return [
            [stop - start for start, stop in zip(b.query_start, b.query_start[1:], strict=False)]
            for b in self.model.batches
        ]


@pytest.mark.parametrize("stages", [2, 3])
def test_one_long_prompt_keeps_every_stage_busy(stages):
    """The next chunk is submitted while the last one is on its way, for it waits for no token."""
    pipeline = Pipeline(stages)
    made = pipeline.add(30, max_tokens=3)
    pipeline.scheduler.step()
    assert pipeline.sizes() == [[8]] * stages, "one chunk for each stage before the first result"
    assert made.num_computed == 8 * stages
    pipeline.finish()
    assert pipeline.sizes() == [[8], [8], [8], [6], [1], [1]]
    assert pipeline.is_alone(made)


@pytest.mark.parametrize(
    ("requests", "stages", "shares"), [(4, 2, [2, 2]), (5, 2, [3, 2]), (7, 3, [3, 3, 1])]
)
def test_decodes_are_shared_out_among_the_stages(requests, stages, shares):
    """Otherwise all would be in one micro-batch, and the other stages would wait for its tokens."""
    pipeline = Pipeline(stages, max_num_batched_tokens=64)
    for _ in range(requests):
        pipeline.add(2, max_tokens=8)
    while not all(len(made.tokens) >= 3 for made in pipeline.sequences):
        pipeline.scheduler.step()
    assert sorted(map(len, pipeline.sizes()[-stages:]), reverse=True) == shares
    pipeline.finish()
    assert all(map(pipeline.is_alone, pipeline.sequences))


def test_a_decode_waits_for_its_token():
    pipeline = Pipeline()
    pipeline.add(3, max_tokens=5)
    pipeline.finish()
    assert pipeline.model.most == 1, "one request that decodes has one micro-batch in flight"


def test_with_one_stage_the_steps_are_those_of_day_3_3():
    """The same plans in the same order, and the same events."""
    found = []
    for cls in (PipelinedScheduler, HybridScheduler):
        pipeline = Pipeline(1, num_blocks=7)
        pipeline.scheduler = cls(
            pipeline.model, pipeline.allocator, max_num_batched_tokens=8, max_num_seqs=8,
            clock=pipeline.model.clock, on_event=pipeline.events.append,
        )  # fmt: skip
        for size in (11, 3, 9):
            pipeline.add(size, max_tokens=6)
        pipeline.finish()
        found.append((pipeline.sizes(), [(e.kind, e.time) for e in pipeline.events]))
    assert found[0] == found[1]
    assert "preempt" in {kind for kind, _ in found[0][1]}


@settings(max_examples=60, deadline=None)
@given(data=st.data(), stages=st.integers(1, 3), caching=st.booleans())
def test_random_loads_give_the_answers_of_solo_runs(data, stages, caching):
    """Small pools, preemptions of requests in flight, aborts at any time; no block is lost."""
    blocks = data.draw(st.integers(8, 24))
    pipeline = Pipeline(stages, blocks, caching=caching)
    plans = data.draw(
        st.lists(
            st.tuples(
                st.integers(1, 20), st.integers(1, 8), st.integers(0, 6), st.none() | st.integers(0, 9)
            ),
            min_size=1,
            max_size=7,
        )
    )
    ends = {}
    for number in range(300):
        for size, max_tokens, arrival, end in plans:
            if arrival == number:
                made = pipeline.add(size, max_tokens)
                ends[made] = None if end is None else number + end
        for made, end in ends.items():
            if end == number:
                made.abort()
        if number > 6 and not pipeline.scheduler.has_work_remaining():
            break
        pipeline.scheduler.step()
    assert all(made.is_done for made in pipeline.sequences)
    for made in pipeline.sequences:
        answer = pipeline.model.answer_alone(made.prompt_tokens, made.max_new_tokens)
        assert made.tokens == answer[: len(made.tokens)]
        assert made.finish_reason == "abort" or made.tokens == answer
    assert pipeline.allocator.num_free == pipeline.allocator.num_blocks


def test_a_call_that_fails_ends_the_requests_in_flight_and_no_others():
    pipeline = Pipeline(model={"fails": {1: RuntimeError("gone")}}, max_num_seqs=2)
    made = [pipeline.add(8, 4), pipeline.add(8, 4), pipeline.add(8, 4)]
    pipeline.scheduler.step()
    with pytest.raises(RuntimeError, match="gone"):
        pipeline.scheduler.step()
    assert [one.error for one in made[:2]] == ["gone", "gone"]
    pipeline.finish()
    assert pipeline.is_alone(made[2]) and made[2].finish_reason == "length"
    assert pipeline.allocator.num_free == pipeline.allocator.num_blocks


def test_closing_ends_everything():
    pipeline = Pipeline()
    pipeline.add(30)
    pipeline.scheduler.step()
    pipeline.scheduler.close()
    assert pipeline.allocator.num_free == pipeline.allocator.num_blocks


def test_other_policies_have_no_stages():
    pipeline = Pipeline()
    with pytest.raises(ValueError, match=r"policy is .slack.*give .hybrid"):
        make_scheduler("slack", pipeline.model, pipeline.allocator)
    assert isinstance(make_scheduler("hybrid", pipeline.model, pipeline.allocator), PipelinedScheduler)


@given(st.integers(1, 80), st.integers(1, 16))
def test_stages_cover_the_layers_in_order(num_layers, num_stages):
    if num_stages > num_layers:
        with pytest.raises(ValueError, match=f"give at most {num_layers}"):
            stage_layers(num_layers, num_stages, 0)
        return
    stages = [stage_layers(num_layers, num_stages, stage) for stage in range(num_stages)]
    assert [layer for stage in stages for layer in stage] == list(range(num_layers))
    sizes = list(map(len, stages))
    assert max(sizes) - min(sizes) <= 1 and sizes == sorted(sizes, reverse=True)
