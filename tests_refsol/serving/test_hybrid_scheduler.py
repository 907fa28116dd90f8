"""The hybrid scheduler as a product: refusals, aborts, failures, policies, events and what listens to them."""

import sys

import pytest

from support.served import Served
from support.steps import steps_of
from tiny_llm_course.trace.recorder import Recorder
from tiny_llm_ref import serving
from tiny_llm_ref.serving import (
    AdaptiveChunker,
    ChunkedPrefillMetrics,
    LoadChunker,
    PriorityScheduler,
    Sampled,
)


class Engine(Served):
    """A `Served` of the reference, whose answers have no limit unless they are given one."""

    def __init__(self, *arguments, **options):
        super().__init__(serving, *arguments, **options)

    def add(self, prompt="ab", **options):
        return super().add(prompt, **{"max_tokens": None, **options})

    def finish(self):
        steps = 0
        for _ in steps_of(self.loop):
            self.loop.step()
            steps += 1
        return steps

    def story(self, number):
        return super().story(self.sequences[number])

    def is_as_new(self):
        return self.allocator.num_free == self.allocator.num_blocks and not self.scheduler.running

    def is_alone(self, made):
        return made.tokens == self.answer_of(made)


# ---- what can never be served


def test_the_last_token_of_an_answer_needs_no_room():
    """40 tokens of blocks: a prompt of 30 and an answer of 11, of which the last token is never computed."""
    engine = Engine(num_blocks=10)
    fits = engine.add("a" * 30, max_tokens=11)
    assert engine.add("a" * 30, max_tokens=12).finish_reason == "error"
    assert engine.story(1) == ["arrive", "finish"] and not engine.model.batches, "before any step"
    engine.finish()
    assert len(fits.tokens) == 11 and engine.is_alone(fits)


def test_without_max_tokens_the_pool_is_a_limit_and_no_error():
    engine = Engine(num_blocks=3)
    made = engine.add("abcd")
    engine.finish()
    assert (made.finish_reason, len(made.known_tokens)) == ("length", 13), (
        "12 tokens in blocks, and the last one"
    )


def test_the_models_context_is_a_limit_and_no_error():
    engine = Engine(model={"max_model_len": 10})
    made = engine.add("abcd", max_tokens=50, max_seq_len=1000)
    engine.finish()
    assert (made.finish_reason, len(made.tokens)) == ("length", 6)


def test_a_priority_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match="priority is 'urgent': choose interactive or batch"):
        Engine().add(priority="urgent")


# ---- aborts


@pytest.mark.parametrize(("steps", "computed"), [(0, 0), (2, 4), (4, 10)])
@pytest.mark.parametrize("preempted", [False, True])
def test_an_abort_between_two_steps_ends_a_request_at_once(steps, computed, preempted):
    """Its blocks are free, its text stays, and the others have their own answers (lmdeploy#1788)."""
    engine = Engine(num_blocks=8, max_num_seqs=2, max_num_batched_tokens=6)
    first = engine.add("abcdefgh", max_tokens=9)
    made = engine.add("klmnopqrst", max_tokens=4)
    third = engine.add("uv", max_tokens=3)
    for _ in range(steps):
        engine.loop.step()
    assert made.num_computed == computed
    if preempted and computed:
        engine.scheduler.preempt(made)
    text, free = made.text, engine.allocator.num_free
    held = len(made.block_table.blocks)
    made.abort()
    assert (made.finish_reason, made.text, engine.allocator.num_free) == ("abort", text, free + held)
    made.abort()
    engine.finish()
    assert engine.is_alone(first) and engine.is_alone(third) and engine.is_as_new()
    assert engine.story(1).count("finish") == 1 and made.finish_reason == "abort"


@pytest.mark.parametrize("call", [0, 1, 3])
def test_an_abort_while_the_model_runs_is_a_mark(call):
    """The model writes into the blocks until its call returns; the token of that call is not taken."""
    seen = []

    def during(number):
        if number == call:
            made.abort()
            seen.append((made.is_done, len(made.block_table.blocks) > 0, len(made.tokens)))

    engine = Engine(model={"during": during}, max_num_batched_tokens=6)
    made, other = engine.add("abcdefgh", max_tokens=9), engine.add("kl", max_tokens=4)
    engine.finish()
    [(was_done, had_blocks, tokens)] = seen
    assert (was_done, had_blocks) == (False, True)
    assert (made.finish_reason, len(made.tokens)) == ("abort", tokens), (
        "no token of the call that it was aborted in"
    )
    assert engine.is_alone(other) and engine.is_as_new()
    assert engine.story(0)[-1] == "finish" and engine.story(0).count("token") == tokens


@pytest.mark.parametrize("kind", ["arrive", "prefill", "step", "token", "preempt", "resume", "finish"])
def test_a_listener_may_abort_everybody_at_any_event(kind):
    engine = Engine(num_blocks=5, max_num_batched_tokens=64)

    def abort_all(event):
        if event.kind == kind and len(engine.sequences) == 3:
            for one in engine.sequences:
                one.abort()

    engine.listener = abort_all
    for prompt in ("abcdefgh", "ijklmnop", "qr"):
        engine.add(prompt, max_tokens=5)
    engine.finish()
    assert all(one.is_done for one in engine.sequences) and engine.is_as_new()
    assert all(engine.story(i).count("finish") == 1 for i in range(3)), [engine.story(i) for i in range(3)]


def test_requests_that_were_aborted_while_they_waited_take_no_step():
    """Hundreds of them leave in the one step that admits the next (sglang's and lmdeploy's leak)."""
    engine = Engine(max_num_seqs=1)
    first = engine.add("ab", max_tokens=2)
    for _ in range(300):
        engine.add("cd").abort()
    last = engine.add("ef", max_tokens=1)
    assert engine.finish() == 3
    assert engine.is_alone(first) and engine.is_alone(last) and engine.is_as_new()


def test_the_step_that_ends_the_last_lets_go_those_that_were_aborted_behind_a_full_pool():
    """A server takes no step while nobody is open: it would count them as waiting until somebody comes."""
    engine = Engine(num_blocks=3, max_num_seqs=4)
    first = engine.add("abcdefgh", max_tokens=3)
    engine.loop.step()
    waiting = [engine.add("ijklmnop", max_tokens=3) for _ in range(3)]
    engine.loop.step()
    assert not first.is_done and engine.loop.waiting.is_full
    for sequence in waiting:
        sequence.abort()
    engine.loop.step()
    assert first.is_done and not engine.loop.has_work_remaining()
    assert all(engine.story(i).count("finish") == 1 for i in range(4)), [engine.story(i) for i in range(4)]


def test_a_step_that_ends_the_last_takes_nobody_out_of_the_queue_who_waits_on():
    """Somebody more urgent who comes before the next step goes first."""
    engine = Engine(num_blocks=3, max_num_seqs=4, queue=PriorityScheduler())
    engine.add("abcdefgh", max_tokens=1)
    later = engine.add("ijklmnop", max_tokens=1, priority="batch")
    engine.loop.step()
    assert engine.sequences[0].is_done and not engine.loop.running
    urgent = engine.add("qrstuvwx", max_tokens=1)
    engine.loop.step()
    assert urgent.is_done and not later.is_done
    engine.finish()
    assert later.is_done and engine.is_as_new()


# ---- failures


@pytest.mark.parametrize("error", [RuntimeError("out of memory"), KeyboardInterrupt()])
@pytest.mark.parametrize("call", [0, 1, 2])
@pytest.mark.parametrize("mixed_steps", [True, False])
def test_a_call_that_fails_ends_the_requests_in_it_and_no_others(error, call, mixed_steps):
    engine = Engine(
        model={"fails": {call: error}}, mixed_steps=mixed_steps, max_num_seqs=2, max_num_batched_tokens=6
    )
    for prompt in ("abcdefgh", "kl", "mn", "op"):
        engine.add(prompt, max_tokens=4)
    with pytest.raises(type(error)):
        engine.finish()
    failed = engine.model.batches[call]
    ended = [one for one in engine.sequences if one.is_done and one.finish_reason != "length"]
    assert len(ended) == len(failed.context_lens)
    expected = ("error", "out of memory") if isinstance(error, RuntimeError) else ("abort", None)
    assert {(one.finish_reason, one.error) for one in ended} == {expected}
    assert not any(one in engine.loop.running for one in ended)
    assert all(not one.block_table.blocks for one in ended)
    engine.finish()
    assert all(engine.is_alone(one) for one in engine.sequences if one not in ended) and engine.is_as_new()


def test_closing_ends_everybody_and_frees_every_block():
    engine = Engine(max_num_seqs=2)
    for prompt in ("abcdefghijkl", "mn", "op"):
        engine.add(prompt, max_tokens=9)
    engine.loop.step()
    engine.loop.close()
    assert {one.finish_reason for one in engine.sequences} == {"abort"} and engine.is_as_new()
    with pytest.raises(RuntimeError, match="this scheduler is closed"):
        engine.add()


def test_too_few_samples_are_an_error():
    engine = Engine()
    engine.add("ab")
    plan = engine.loop.plan(0.0)
    with pytest.raises(ValueError, match="zip"):
        engine.loop.commit(plan, [])


# ---- the other policies


def test_separate_calls_are_the_same_plan_in_two_calls():
    """Chunks and then decodes, as vLLM on Gaudi does it: the same steps and the same answers."""
    traces = {}
    for policy in ("hybrid", "separate"):
        engine = Engine(mixed_steps=policy == "hybrid")
        engine.add("ab", max_tokens=6)
        engine.loop.step()
        engine.add("klmnopqrstuv", max_tokens=3)
        steps = 1 + engine.finish()
        traces[policy] = engine.model.trace, steps, [one.tokens for one in engine.sequences]
    assert traces["hybrid"][1:] == traces["separate"][1:]
    assert traces["hybrid"][0][1].endswith(" klmnopq@0") and traces["separate"][0][1] == "klmnopq@0"
    assert len(traces["separate"][0]) == len(traces["hybrid"][0]) + 2


def test_each_call_of_separate_policy_is_an_event_and_decodes_have_waited():
    engine = Engine(mixed_steps=False)
    engine.add("ab", max_tokens=6)
    engine.loop.step()
    engine.add("klmnop", max_tokens=3)
    engine.events.clear()
    engine.loop.step()
    steps = [event for event in engine.events if event.kind == "step"]
    assert [[(p.kind, p.tokens, p.running) for p in e.parts] for e in steps] == [
        [("chunk", 6, 1)],
        [("decode", 1, 0)],
    ]
    assert [event.seconds for event in steps] == [6, 1] and steps[1].start == steps[0].time


def test_without_chunks_a_cached_prefix_counts_for_what_it_saves():
    engine = Engine(enable_chunked_prefill=False, max_num_batched_tokens=64, caching=True)
    engine.add("a" * 40, max_tokens=1)
    engine.finish()
    for _ in range(3):
        engine.add("a" * 40 + "bcd", max_tokens=1)
    engine.finish()
    last = [event for event in engine.events if event.kind == "step"][-1]
    assert [part.tokens for part in last.parts] == [3, 3, 3]


def test_a_chunker_chooses_how_many_tokens_of_prompts_ride_along():
    """It learns from whole steps: 4 decodes and a chunk of 16 cost more than its target, 4 and 8 do not."""
    chunker = AdaptiveChunker(decode_latency_target=14.0, sizes=(4, 8, 16))
    engine = Engine(chunker=chunker, max_num_batched_tokens=20, num_blocks=200, model={"max_model_len": 600})
    for letter in "abcd":
        engine.add(letter, max_tokens=60, max_seq_len=600)
    engine.loop.step()
    engine.scheduler.max_num_seqs = 5
    engine.add("k" * 300, max_tokens=1, max_seq_len=600)
    engine.finish()
    sizes = [
        part.tokens
        for event in engine.events
        if event.kind == "step" and len(event.parts) == 2
        for part in event.parts
        if part.kind == "chunk"
    ]
    assert sizes[0] == 16 and set(sizes[6:-1]) == {8}, sizes
    assert all(engine.is_alone(one) for one in engine.sequences)


def test_a_chunk_shrinks_with_the_load():
    """The same prompt beside 1, 2 and 3 of 4 decodes: its chunks are what the idle slots leave of the budget."""
    sizes = {}
    for decodes in (0, 1, 2, 3):
        engine = Engine(chunker=LoadChunker((2, 4, 8)), max_num_batched_tokens=12, num_blocks=200)
        for letter in "abc"[:decodes]:
            engine.add(letter, max_tokens=20)
        engine.loop.step()
        engine.add("k" * 36, max_tokens=1)
        engine.finish()
        steps = [event.parts for event in engine.events if event.kind == "step"][bool(decodes) :]
        sizes[decodes] = [part.tokens for parts in steps for part in parts if part.kind == "chunk"]
        assert all(engine.is_alone(one) for one in engine.sequences)
    assert sizes == {0: [12] * 3, 1: [8] * 4 + [4], 2: [4] * 9, 3: [2] * 18}


def test_a_load_chunker_says_what_is_out_of_range():
    chunker = LoadChunker((4, 8))
    assert [chunker.select_chunk_size(16, share) for share in (0.0, 0.5, 0.75, 1.0)] == [8, 8, 4, 4]
    for base, share in ((0, 0.5), (8, 1.5)):
        with pytest.raises(ValueError, match="share from 0 to 1"):
            chunker.select_chunk_size(base, share)


# ---- what listens


def heard(**options):
    """An engine whose events go to metrics and a recorder: two that decode, then a prompt in two chunks."""
    metrics, recorder = ChunkedPrefillMetrics(prefill_step=8), Recorder(8)
    engine = Engine(metrics=metrics, **options)
    engine.listener = recorder
    engine.add("ab", max_tokens=6)
    engine.add("cd", max_tokens=6)
    engine.loop.step()
    engine.add("klmnopqrst", max_tokens=2)
    engine.finish()
    return engine, metrics, recorder.trace()


def test_metrics_of_hybrid_steps_are_true():
    """Every step served every decode; its seconds are shared by its tokens, so their sum is what all steps took."""
    engine, metrics, trace = heard()
    assert (metrics.prefill_chunks_processed, metrics.decode_requests_served) == (4, 11)
    assert metrics.stall_steps == trace.stall_steps == 0
    assert metrics.prefill_seconds + metrics.decode_seconds == pytest.approx(engine.model.clock.now)
    assert metrics.longest_gap == trace.longest_gap == 8, "a step with two decodes and 6 tokens of a prompt"


def test_a_budget_above_the_promise_is_a_stall_also_in_one_call():
    """Running requests agreed to wait for 8 tokens of prompts, and waited for 14."""
    _, metrics, trace = heard(max_num_batched_tokens=16, max_num_seqs=2)
    assert metrics.stall_steps == trace.stall_steps == 0, "two run, and the prompt waits for a place"
    _, metrics, trace = heard(max_num_batched_tokens=16)
    assert metrics.stall_steps == trace.stall_steps == 1


def test_a_trace_of_hybrid_steps_has_a_chunk_and_decodes_side_by_side():
    _, _, trace = heard()
    long = trace.of(trace.lanes[2])
    chunks = [span for span in long if span.kind == "chunk"]
    assert [(span.tokens, span.context, span.seconds) for span in chunks] == [(6, 0, 8), (4, 6, 6)]
    beside = [span for span in trace.of(trace.lanes[0]) if span.start == chunks[0].start]
    assert [(span.kind, span.end) for span in beside] == [("decode", chunks[0].end)]
    assert all(span.seconds > 0 for span in trace.spans), "nobody waited for nothing"


def test_a_preemption_is_a_pause_in_the_trace():
    recorder = Recorder(8)
    engine = Engine(num_blocks=5, max_num_batched_tokens=64)
    engine.listener = recorder
    for prompt in ("abcdefgh", "ijklmnop", "qr"):
        engine.add(prompt, max_tokens=5)
    engine.finish()
    trace = recorder.trace()
    assert [span.kind for span in trace.of(trace.lanes[2])].count("paused") == 1
    assert engine.story(2)[:4] == ["arrive", "prefill", "token", "preempt"] and "resume" in engine.story(2)
    assert engine.story(2).count("prefill") == 1


def test_what_the_model_says_about_tokens_is_kept_with_them():
    engine = Engine(model={"answers": {"ab": "xyz"}})
    made = engine.add("ab")
    engine.finish()
    assert made.finish_reason == "stop"
    assert [sampled.token for sampled in made.sampled] == made.tokens == [*b"xyz"], (
        "the end token is no part of it"
    )


# ---- host time and memory


def lines_of_a_decode(length):
    """Lines of Python that plan and commit execute for a request with a prompt of so many tokens that decodes."""
    options = {"num_blocks": 100, "block_size": 64, "max_num_batched_tokens": 4096}
    engine = Engine(**options, model={"max_model_len": 4096})
    engine.add("a" * length, max_tokens=8, max_seq_len=4096)
    engine.loop.step()
    count = 0

    def trace(frame, event, argument):
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        engine.loop.commit(engine.loop.plan(0.0), [Sampled(ord("x"))])
    finally:
        sys.settrace(before)
    return count


def test_a_decode_costs_no_more_with_a_long_text_behind_it():
    assert lines_of_a_decode(2000) == lines_of_a_decode(10), "work in proportion to the known tokens"


def test_ten_thousand_short_requests_leave_nothing_behind():
    engine = Engine(num_blocks=32, max_num_seqs=8, max_num_batched_tokens=32)
    scheduler = engine.loop
    for batch in range(100):
        engine.model.batches.clear()
        for _ in range(20):
            engine.add("ab", max_tokens=2)
        engine.finish()
        assert len(scheduler.collect_results()) == 20, batch
    held = [scheduler.running, scheduler.waiting.returned, scheduler._sequences, scheduler.events.pending]
    assert [len(one) for one in held] == [0, 0, 0, 0] and engine.is_as_new()
