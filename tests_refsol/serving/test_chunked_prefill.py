"""The scheduler of Day 2.7 as a product: any mix of requests, knobs, arrivals, aborts and failures; its overhead."""

import io
import sys
import tracemalloc
from functools import partial
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

import tiny_llm_course
from support.fake_model import ByteTokenizer, FakeModel
from tiny_llm_course.trace.batch.view import BatchLines, SlotBoard
from tiny_llm_course.trace.recorder import Recorder
from tiny_llm_ref.serving import ChunkedPrefillScheduler, FifoQueue, Request, SamplingParams, Turns

MAX_SEQ_LEN = 24
# Of each request: tokens of its prompt (0 and 24 and more are refused), of its answer, its limit, its class, and the
# step before which it arrives.
REQUESTS = st.lists(
    st.tuples(
        st.one_of(st.integers(1, 6), st.integers(0, MAX_SEQ_LEN + 1)),
        st.integers(0, 8),
        st.one_of(st.none(), st.integers(1, 9)),
        st.sampled_from(["interactive", "batch"]),
        st.integers(0, 30),
    ),
    max_size=8,
)
KNOBS = st.fixed_dictionaries(
    {
        "prefill_step": st.one_of(st.integers(1, 8), st.just(999_999)),
        "pause_prefill": st.booleans(),
        "peak_load": st.sampled_from([None, 0.25, 0.5, 1.0]),
        "patience": st.integers(1, 4),
    }
)
OF_TURNS = ("pause_prefill", "peak_load", "patience")
SLOTS = st.integers(1, 4)
ABORTS = st.dictionaries(st.integers(0, 80), st.lists(st.integers(0, 7), max_size=3), max_size=6)


def expected(prompt: int, answer: int, limit: int | None) -> tuple[str, str]:
    """(text, finish reason) of a request that runs alone, in plain words."""
    if not 0 < prompt < MAX_SEQ_LEN:
        return "", "error"
    room = min(MAX_SEQ_LEN - prompt, limit or MAX_SEQ_LEN)
    return "abcdefgh"[:answer][:room], "stop" if answer < room else "length"


class Mix:
    """A random mix on the fake model, served step by step by whoever does not stop at an error."""

    def __init__(self, mix: list, slots: int, knobs: dict, reserved: int = 0, fails=None, heard=None):
        self.mix, self.events, self.heard = mix, [], heard
        self.names = [chr(ord("A") + index) * case[0] for index, case in enumerate(mix)]
        scripts = {name: "abcdefgh"[: case[1]] for name, case in zip(self.names, mix, strict=True) if name}
        self.model = FakeModel(scripts, fails=fails)
        self.requests: dict[int, Request] = {}
        self.errors: list[BaseException] = []
        self.scheduler = ChunkedPrefillScheduler(
            self.model,
            slots,
            max_seq_len=MAX_SEQ_LEN,
            turns=Turns(
                reserved_decode_slots=min(reserved, slots - 1),
                **{name: value for name, value in knobs.items() if name in OF_TURNS},
            ),
            clock=self.model.clock,
            on_event=self._note,
            **{name: value for name, value in knobs.items() if name not in OF_TURNS},
        )

    def _note(self, event) -> None:
        self.events.append(event)
        if self.heard:
            self.heard(self)

    def _try(self, action) -> None:
        try:
            action()
        except (OSError, KeyboardInterrupt) as error:
            self.errors.append(error)

    def _add(self, index: int) -> None:
        _, _, limit, priority, _ = self.mix[index]
        self.requests[index] = Request(
            self.model,
            ByteTokenizer(),
            self.names[index],
            prompt_idx=index,
            sampling=SamplingParams(max_tokens=limit),
            priority=priority,
        )
        self._try(lambda: self.scheduler.add(self.requests[index]))

    def serve(self) -> "Mix":
        """Every step does something, or nothing is left; and the number of steps has a bound."""
        step, last = 0, max((case[4] for case in self.mix), default=0)
        while step <= last or self.scheduler.has_work_remaining():
            for index, case in enumerate(self.mix):
                if case[4] == step:
                    self._add(index)
            busy, before = self.scheduler.has_work_remaining(), (len(self.model.calls), len(self.events))
            self._try(self.scheduler.step)
            moved = (len(self.model.calls), len(self.events)) != before
            assert moved or not busy, "a step did nothing, though there is work"
            step += 1
            assert step < 2000, "somebody waits for ever"
        return self

    def check_answers(self, except_of: set = frozenset()) -> None:
        for index, case in enumerate(self.mix):
            request, (text, reason) = self.requests[index], expected(*case[:3])
            if index in except_of:
                assert request.is_done and "abcdefgh"[: case[1]].startswith(request.text)
            else:
                assert (request.text, request.finish_reason) == (text, reason), f"request {index}"

    def check_memory(self) -> None:
        """Every end is told once, and all that was taken is given back, before close() already."""
        told = sorted(event.request.prompt_idx for event in self.events if event.kind == "finish")
        assert told == sorted(self.requests)
        assert all(cache.is_released for cache in self.model.caches)
        assert not any(row for layer in self.model.batch_caches for row in layer.rows)
        results = self.scheduler.collect_results()
        assert [result.prompt_idx for result in results] == sorted(self.requests)
        assert self.scheduler.collect_results() == []
        self.scheduler.close()
        assert not self.model.unreleased()


@settings(max_examples=150)
@given(
    REQUESTS,
    SLOTS,
    KNOBS,
    st.integers(0, 3),
    ABORTS,
    st.dictionaries(st.integers(0, 60), st.sampled_from([OSError, KeyboardInterrupt]), max_size=4),
    st.sets(st.integers(1, 90), max_size=3),
)
def test_any_mix_with_any_aborts_and_failures(mix, slots, knobs, reserved, aborts, fails, raising):
    """At the n-th event some requests are aborted, in whatever phase they are, or on_event raises; the model may fail
    in any call, which ends those that were in it. The others do not notice."""
    aborted = set()

    def heard(run):
        for index in aborts.get(len(run.events), []):
            if index in run.requests and not run.requests[index].is_done:
                aborted.add(index)
                run.requests[index].abort()
        if len(run.events) in raising:
            raise OSError("nobody listens")

    fails = {step: error(f"step {step}") for step, error in fails.items()}
    run = Mix(mix, slots, knobs, reserved, fails, heard).serve()
    failed = {i for i, r in run.requests.items() if r.finish_reason == "abort" or "step" in (r.error or "")}
    rows = sum(call.computed if call.is_batch else 1 for n, call in enumerate(run.model.calls) if n in fails)
    assert len(failed - aborted) <= rows
    run.check_answers(failed)
    run.check_memory()


class Slowest:
    """A chunker that always wants the base, or nothing at all."""

    sizes = (2, 4)

    def __init__(self, size: int | None = None):
        self.size, self.seen = size, []

    def observe(self, chunk_size: int, seconds: float) -> None:
        self.seen.append((chunk_size, seconds))

    def select_chunk_size(self, base_chunk_size: int, decode_pressure: float) -> int:
        return self.size or base_chunk_size


def test_a_chunker_chooses_every_chunk_and_hears_what_it_cost():
    chunker = Slowest(2)
    run = Mix([(5, 2, None, "interactive", 0)], 1, {"prefill_step": 8, "chunker": chunker}).serve()
    assert chunker.seen == [(2, 2.0), (2, 2.0), (1, 1.0)]
    run.check_memory()


def test_a_prompt_does_not_wait_for_ever_when_no_chunk_fits(monkeypatch):
    """A chunk size of 0 means to wait; but when nobody runs, nobody will make room."""
    sizes = "tiny_llm_ref.serving.chunked_prefill.chunk.select_optimal_chunk_size"
    monkeypatch.setattr(sizes, lambda *arguments: 0)
    run = Mix(
        [(5, 3, None, "interactive", 0), (4, 2, None, "batch", 0)],
        2,
        {"prefill_step": 8, "chunker": Slowest()},
    )
    run.serve().check_answers()
    assert run.model.trace[:4] == ["prompt AA", "prompt AA", "prompt A", "decode a-"], (
        "alone it goes on, in small steps"
    )
    assert run.model.trace[4:6] == ["decode b-", "decode c-"], "beside a running one it waits"


scheduler_of = partial(ChunkedPrefillScheduler, FakeModel({}))


@pytest.mark.parametrize(
    ("make", "options", "named"),
    [
        (scheduler_of, {"prefill_step": 0}, "prefill_step is 0"),
        (scheduler_of, {"prefill_step": -5}, "prefill_step is -5"),
        (scheduler_of, {"batch_size": 0}, "batch_size is 0"),
        (scheduler_of, {"turns": Turns(reserved_decode_slots=5)}, "slots is 5: give 0 to 4"),
        (
            scheduler_of,
            {"batch_size": 1, "turns": Turns(reserved_decode_slots=1)},
            "is 1: give 0 to 0, fewer",
        ),
        (Turns, {"reserved_decode_slots": -1}, "reserved_decode_slots is -1"),
        (Turns, {"peak_load": 0.0}, "peak_load is 0"),
        (Turns, {"peak_load": 1.5}, "peak_load is 1.5"),
        (Turns, {"patience": 0}, "patience is 0"),
        (partial(Request, FakeModel({}), ByteTokenizer(), "x"), {"priority": "urgent"}, "urgent"),
    ],
)
def test_a_number_or_a_name_out_of_range_is_named(make, options, named):
    with pytest.raises(ValueError, match=named):
        make(**options)


# The queue, and what a step costs.

QUEUED = st.lists(st.tuples(st.integers(1, 9), st.sampled_from(["interactive", "batch"])), max_size=30)
TAKEN = st.lists(
    st.tuples(st.sampled_from(["next", "shorter"]), st.integers(0, 10), st.booleans()), max_size=60
)


class Waiting:
    def __init__(self, tokens: int, priority: str):
        self.prompt_tokens, self.priority = [0] * tokens, priority


@given(QUEUED, TAKEN)
def test_the_queue_gives_what_a_plain_list_gives(queued, taken):
    queue, line = FifoQueue(), []
    for case in queued:
        line.append(Waiting(*case))
        queue.add(line[-1])
    for how, tokens, only in taken:
        able = [one for one in line if one.priority == "interactive" or not only]
        if how == "next":
            wanted, found = next(iter(able), None), queue.schedule_next(only)
        else:
            able = [one for one in able if len(one.prompt_tokens) < tokens]
            wanted = min(able, key=lambda one: len(one.prompt_tokens), default=None)
            found = queue.shorter_than(tokens, only)
        assert found is wanted
        line = [one for one in line if one is not wanted]
        assert len(queue) == len(line)


def test_the_queue_forgets_what_it_has_given_out():
    """A long prompt that waits for ever does not keep the places of 5,000 others."""
    queue = FifoQueue()
    queue.add(Waiting(9, "interactive"))
    for _ in range(5000):
        queue.add(Waiting(1, "interactive"))
        assert queue.shorter_than(9) is not None
    assert sum(map(len, [*queue._lines.values(), *queue._heaps.values()])) < 300


class Nothing:
    """A model that computes nothing: what a step takes is what the scheduler takes."""

    num_hidden_layers, max_model_len, vocab_size = 1, 10**6, 300

    def create_kv_cache(self, max_seq_len=None):
        return [self]

    def create_batch_cache(self, max_active_requests, max_seq_len):
        return [self]

    def release(self):
        pass

    def add_request(self, prefilled, slot):
        pass

    def remove_request(self, slot):
        pass

    def prefill(self, tokens, offset, kv_cache, *, sampling=None, sample):
        return 97 if sample else None

    def decode(self, tokens, offsets, kv_cache, *, sampling=None):
        return [None if token is None else 97 for token in tokens]


def instructions_of(run) -> int:
    """How many instructions Python executes in `run`: what it takes, on a machine of any speed."""
    executed, before = count(), sys.gettrace()

    def trace(frame, event, argument):
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode":
            next(executed)
        return trace

    sys.settrace(trace)
    try:
        run()
    finally:
        sys.settrace(before)
    return next(executed)


def most_of_a_step(queued: int, steps: int = 20, **options) -> tuple[int, int]:
    """What the largest of many steps takes with so many requests in the queue: instructions, and bytes of memory."""
    model, tokenizer = Nothing(), ByteTokenizer()
    scheduler = ChunkedPrefillScheduler(model, 8, 16, 64, turns=Turns(**options))
    params = SamplingParams(max_tokens=8)
    for number in range(queued + 2 * steps):
        priority = "batch" if number % 3 else "interactive"
        scheduler.add(Request(model, tokenizer, [1] * (1 + number % 40), sampling=params, priority=priority))
    tracemalloc.start()
    most = max(instructions_of(scheduler.step) for _ in range(steps))
    _, held = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(scheduler.turns.queue) >= queued
    return most, held


@pytest.mark.parametrize(
    "options", [{}, {"pause_prefill": True, "reserved_decode_slots": 2, "peak_load": 0.9}]
)
def test_a_step_takes_no_more_because_more_requests_wait(options):
    """As many instructions of Python with 2,000 requests as with 10, and no list of those that wait."""
    (few, least), (many, held) = (most_of_a_step(queued, **options) for queued in (10, 2000))
    assert many < 1.2 * few and many < 10_000, f"{few} instructions with 10 requests, {many} with 2,000"
    assert held < least + 8000, f"{held - least:,} bytes more: a list of 2,000 requests has 16,000"


def test_the_views_of_a_batch_hear_of_chunks_and_steps_and_go_on():
    """A listener that knows the events of Day 2.6 counts the same tokens, and no slot changes with a chunk."""
    mix = [(9, 3, None, "interactive", 0), (3, 2, None, "interactive", 0), (5, 4, None, "batch", 2)]
    recorder, text = Recorder(4), io.StringIO()
    lines = BatchLines(Console(file=text, width=80), ["first", "second", "third"])
    board = SlotBoard([], 2)

    def heard(run):
        for listener in (recorder, lines, board):
            listener(run.events[-1])

    run = Mix(mix, 2, {"prefill_step": 4}, heard=heard).serve()
    run.check_answers()
    trace = recorder.trace()
    assert trace.num_tokens == 9 and all(lane.token_times for lane in trace.lanes)
    assert trace.end == run.model.clock.now
    assert text.getvalue().count("started") == text.getvalue().count("finished") == 3
    assert board.done == {0, 1, 2} and {slot.phase for slot in board.slots} <= {"done", "idle"}


# The benchmark of the public course, with a model and a tokenizer of ours.

BENCHMARK = """
import time
from tiny_llm_ref.batch import batch_generate

long_prompts = ['Write a detailed essay about ' + 'artificial intelligence ' * 100] * 3
short_prompts = ['Hello'] * 10
all_prompts = long_prompts + short_prompts
for prefill_step in [32, 128, 512, 999999]:
    start = time.time()
    results = batch_generate(model, tokenizer, all_prompts, prefill_step=prefill_step, batch_size=5)
    total_time = time.time() - start
    print(f'Chunk size {prefill_step}: {total_time:.2f}s')
    found.append(results)
"""


class EndsSoon:
    """The shipped model, but answers end after at most 16 tokens: "Hello" alone would go on for 511."""

    def __init__(self, model, end: int):
        self.model, self.end = model, end

    def __getattr__(self, name: str):
        return getattr(self.model, name)

    def decode(self, tokens, offsets, kv_cache, **options):
        chosen = self.model.decode(tokens, offsets, kv_cache, **options)
        return [
            self.end if token is not None and offset % 16 == 15 else token
            for token, offset in zip(chosen, offsets, strict=True)
        ]


def test_the_benchmark_of_the_public_course_runs_as_it_is_written(capsys):
    """Its long prompts fit the slots of 512 tokens with room for an answer; no chunk size changes any answer."""
    runner, tokenizer = tiny_llm_course.load(backend="torch", device="cpu", dtype="float32")
    found: list = []
    model = EndsSoon(runner, min(tokenizer.eos_token_ids))
    exec(BENCHMARK, {"model": model, "tokenizer": tokenizer, "found": found})
    assert len(tokenizer.encode("Write a detailed essay about " + "artificial intelligence " * 100)) < 500
    assert [len(results) for results in found] == [13] * 4
    assert all(result.finish_reason in ("stop", "length") for results in found for result in results)
    assert all(result.text for result in found[0]), "every request has an answer"
    assert all(results == found[0] for results in found), "the chunk size has changed an answer"
    assert capsys.readouterr().out.count("Chunk size") == 4
