"""Week 4 Day 4: asynchronous scheduling. Most tests need no arrays: a model that fills placeholders checks every batch.

Oracles: exact tables and batches; each request's answer one step at a time, also from a small random model.
"""

from collections import deque
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.ahead import Ahead
from support.fake_model import ByteTokenizer
from support.masks import assert_traces
from support.packed import PackedServing
from support.steps import steps_of
from tiny_llm_course.grading.small_models import random_checkpoint, small_model
from tiny_llm_course.trace.simulation.virtual_device import served_on_device
from tiny_llm_extensions.make_loop import make_loop

QWEN = small_model(
    47, num_attention_heads=4, num_key_value_heads=2, head_dim=6, vocab_size=61, max_position_embeddings=400
)
GRAMMAR = {"structured_outputs": True}  # replaced by parameters of the solution


def request(s, prompt="abcde", answer="", computed=0, in_flight=0, number=0, **sampling):
    """A request with a part of its answer, of which some tokens are computed and some are in flight."""
    if sampling.pop("structured_outputs", False):
        sampling["structured_outputs"] = s.StructuredOutputsParams(regex="[ab]*")
    params = s.SamplingParams(**{"max_tokens": 40, **sampling})
    made = s.Sequence([*prompt.encode()], ByteTokenizer(), request_id=number, sampling=params, max_seq_len=64)
    for token in answer.encode():
        made.take(token)
    made.num_computed, made.num_in_flight = computed, in_flight
    return made


# What nobody knows yet.


@pytest.mark.task("4.4.1")
@pytest.mark.parametrize(
    ("prompt", "answer", "computed", "in_flight", "expected"),
    [
        ("abcde", "", 0, 0, 0),
        ("abcde", "", 0, 3, 0),  # a chunk from the middle of the prompt draws nothing
        ("abcde", "", 3, 1, 0),
        ("abcde", "", 0, 5, 1),
        ("abcde", "", 3, 2, 1),  # the last chunk draws one, however long it is
        ("abcde", "", 3, 3, 2),
        ("abcde", "x", 5, 0, 0),
        ("abcde", "x", 5, 1, 1),
        ("abcde", "x", 5, 2, 2),
        ("abcde", "xyz", 7, 0, 0),
        ("abcde", "xyz", 7, 1, 1),
        ("abcde", "xyz", 7, 3, 3),
        ("a", "", 0, 1, 1),
        ("abcde", "xyz", 0, 6, 0),  # it was preempted, and is computed again
        ("abcde", "xyz", 4, 3, 0),
        ("abcde", "xyz", 4, 4, 1),
        ("abcde", "xyz", 0, 0, 0),
    ],
)
def test_a_placeholder_is_a_draw_in_flight(s, prompt, answer, computed, in_flight, expected):
    """The row of the last known token draws the first one, and the row of each placeholder the next."""
    made = request(s, prompt, answer, computed, in_flight)
    found = s.num_placeholders(made)
    assert found == expected, (
        f"{len(prompt)} tokens of prompt, {len(answer)} of answer; {computed} computed, {in_flight} in flight: "
        f"{expected} placeholders, not {found}"
    )


# Who must wait.


@pytest.mark.task("4.4.2")
@pytest.mark.parametrize(
    "sampling",
    [
        GRAMMAR,
        {"repetition_penalty": 1.2},
        {"repetition_penalty": 0.8},
        {"presence_penalty": 0.5},
        {"presence_penalty": -0.5},
        {"frequency_penalty": 0.5},
        {"frequency_penalty": -2},
        {"presence_penalty": 1, "frequency_penalty": -1},
        {"repetition_penalty": 0.5, "presence_penalty": 0.5},
        {"temperature": 1.0, "seed": 3, "frequency_penalty": 0.1},
    ],
    ids=str,
)
def test_a_draw_that_depends_on_earlier_tokens_waits(s, sampling):
    """A grammar is at a state, and a penalty counts tokens: both need the ids. Penalties below zero count, too."""
    assert s.must_wait(request(s, "abcde", "x", 5, 1, **sampling)), f"{sampling} needs the last token"


@pytest.mark.task("4.4.2")
@pytest.mark.parametrize(
    "sampling",
    [
        {},
        {"temperature": 1.0, "seed": 3, "top_k": 5, "top_p": 0.9, "min_p": 0.1},
        {"logit_bias": {7: 2.0}},
        {"min_tokens": 3},
        {"stop": "xyz"},
        {"stop_token_ids": [7]},
        {"logprobs": 2, "prompt_logprobs": 2},
        {"n": 2, "sample_index": 1, "ignore_eos": True},
    ],
    ids=str,
)
def test_a_draw_that_depends_on_the_position_does_not_wait(s, sampling):
    """Noise, filters, biases and counts need no id. What ends the text is looked for afterwards."""
    assert not s.must_wait(request(s, "abcde", "x", 5, 1, **sampling)), f"{sampling} needs no token"


# Ready ahead of its token.


@pytest.mark.task("4.4.3")
@pytest.mark.parametrize(
    ("prompt", "answer", "computed", "in_flight", "sampling", "expected"),
    [
        ("abcde", "", 0, 3, {}, False),
        ("abcde", "", 0, 4, {}, False),  # what is left is the last token of the prompt, a chunk
        ("abcde", "", 0, 5, {}, True),
        ("abcde", "", 4, 1, {}, True),
        ("abcde", "x", 5, 1, {}, True),
        ("abcde", "xyz", 7, 1, {}, True),
        ("abcde", "xyz", 0, 5, {}, False),  # it comes back after a preemption: xy are to be computed again
        ("abcde", "xyz", 0, 6, {}, False),
        ("abcde", "xyz", 0, 7, {}, True),  # z is known, the tokens before it are in flight
        ("abcde", "xyz", 4, 4, {}, True),
        ("abcde", "", 0, 5, {"max_tokens": 1}, False),  # the one token of its answer is in flight
        ("abcde", "", 0, 5, {"max_tokens": 2}, True),
        ("abcde", "x", 5, 1, {"max_tokens": 2}, False),
        ("abcde", "x", 5, 1, {"max_tokens": 3}, True),
        ("abcde", "xyz", 7, 1, {"max_tokens": 4}, False),
        ("abcde", "xyz", 7, 1, {"max_tokens": 5}, True),
        ("abcde", "xyz", 0, 7, {"max_tokens": 4}, True),
        ("abcde", "x", 5, 1, {"frequency_penalty": 1.0}, False),
        ("abcde", "", 0, 5, {"frequency_penalty": 1.0}, False),  # also the first draw is one
        ("abcde", "xyz", 0, 7, {"frequency_penalty": 1.0}, True),  # all tokens are known
        ("abcde", "xyz", 0, 6, {"frequency_penalty": 1.0}, False),
        ("abcde", "x", 5, 1, GRAMMAR, False),
        ("abcde", "x", 5, 1, {"stop": "z"}, True),  # a stop string is found late, and nobody waits for it
        ("abcde", "x", 5, 2, {}, True),  # the limit alone says how many placeholders there may be
    ],
)
def test_a_request_is_ready_when_its_last_token_is_left(
    s, prompt, answer, computed, in_flight, sampling, expected
):
    """The last token, known or not, alone; the limit leaves room for one more; and it need not wait."""
    made = request(s, prompt, answer, computed, in_flight, **sampling)
    found = s.can_decode_ahead(made)
    assert found is expected, (
        f"{prompt}, {answer or 'no answer yet'}: {computed} computed, {in_flight} in flight, {sampling}: {found}"
    )


@pytest.mark.task("4.4.3")
@pytest.mark.parametrize(("room", "expected"), [(6, False), (7, True), (8, True)])
def test_the_context_is_a_limit_too(s, room, expected):
    """`max_new_tokens` is what the request and its context leave. One token of the answer is in flight."""
    made = request(s, "abcde", "", 0, 5, max_tokens=None)
    made.max_seq_len = room
    found = s.can_decode_ahead(made)
    assert found is expected, f"5 tokens of prompt, 1 placeholder, and room for {room} tokens: {found}"


@pytest.mark.task("4.4.3")
def test_an_ended_request_is_not_ready(s):
    """It was aborted, or its end was found, while a step of it is in flight."""
    made = request(s, "abcde", "x", 5, 1)
    made.block_table = s.BlockTable(s.BlockAllocator(4, 4))
    made.finish("stop")
    assert s.can_decode_ahead(made) is False, "a request that has ended is planned again"


@pytest.mark.task("4.4.3", after="4.4.5")
def test_a_decode_is_submitted_before_its_token_is_known(s):
    """Two steps are in flight while an answer lasts, and the second reads what the first draws."""
    engine = Ahead(s)
    made = engine.send("abc", max_tokens=5)
    engine.fill()
    assert [len(batch.token_ids) for batch in engine.model.packed] == [3, 1], "the prompt, then a placeholder"
    assert made.tokens == [], "no result was collected"
    engine.finish()
    assert [batch.sources for batch in engine.model.packed] == [[], [0], [0], [0], [0]]


@pytest.mark.task("4.4.3", after="4.4.5")
@pytest.mark.parametrize("max_tokens", [1, 2, 5])
def test_a_limit_is_never_found_late(s, max_tokens):
    """The rows of a prompt and of an answer but for its last token, and not one more."""
    engine = Ahead(s)
    engine.send("abc", max_tokens=max_tokens)
    engine.finish()
    rows = sum(len(batch.token_ids) for batch in engine.model.packed)
    assert rows == 3 + max_tokens - 1, f"{rows} rows for 3 tokens of prompt and {max_tokens} of answer"


@pytest.mark.task("4.4.3", after="4.4.5")
def test_an_end_token_costs_one_row(s):
    """It is found one step late. The token of the late row is nobody's, and no reader hears of it."""
    engine = Ahead(s, model={"answers": {"abc": "xyz"}})
    made = engine.send("abc", max_tokens=30)
    engine.finish()
    assert (bytes(made.tokens), made.finish_reason) == (b"xyz", "stop")
    rows = sum(len(batch.token_ids) for batch in engine.model.packed)
    assert rows <= 3 + 3 + 1, f"{rows} rows: 3 of the prompt, 3 of the answer, and one in vain at most"
    heard = [event.kind for event in engine.events if event.request is made]
    assert heard.count("token") == 4 and heard[-1] == "finish", f"the events: {heard}"


@pytest.mark.task("4.4.3", after="4.4.5")
def test_a_penalty_sits_out_a_step_and_the_others_do_not(s):
    """The request with a penalty decodes in every other step; its neighbour decodes in each."""
    engine = Ahead(s)
    slow = engine.send("abc", max_tokens=6, frequency_penalty=1.0)
    fast = engine.send("defg", max_tokens=12)
    rows = []
    pack = engine.loop.packed

    def packed(call):
        rows.append([entry.sequence.request_id for entry in call])
        return pack(call)

    engine.loop.packed = packed
    engine.finish()
    assert sum(0 in row for row in rows) == 6 and sum(1 in row for row in rows) == 12
    assert all(1 in row for row in rows), f"requests of each step: {rows}; only request 0 waits"
    assert not any(0 in row and 0 in after for row, after in pairwise(rows)), (
        f"requests of each step: {rows}; request 0 needs its last token"
    )
    assert (len(slow.tokens), len(fast.tokens)) == (6, 12)


@pytest.mark.task("4.4.3", after="4.4.5")
@pytest.mark.parametrize("host", [0.1, 0.5, 1.0])
def test_a_device_never_waits_for_a_host_that_is_faster(s, host):
    """On a device with a clock of its own; step by step it would wait for the host in every step."""
    device = served_on_device(s, True, host, 1.0, [9, 12, 5])
    assert device.idle_share == pytest.approx(0, abs=1e-9), (
        f"host {host} s, step 1 s: {device.idle_share:.0%}"
    )
    assert device.reads == len(device.device), "one read per step"


# Blocks for what nobody knows.


def running(engine, prompt, answer, in_flight, computed=None):
    """A request that runs: its tokens but the last are computed, and it has blocks for all that are known."""
    made = request(engine.s, prompt, answer, number=len(engine.sequences))
    known = len(made.known_tokens)
    made.num_computed, made.num_in_flight = known - 1 if computed is None else computed, in_flight
    made.block_table = engine.s.BlockTable(engine.allocator)
    made.block_table.reserve(known)
    made.decodes_ahead = engine.s.can_decode_ahead
    engine.sequences.append(made)
    engine.loop.running.append(made)
    return made


@pytest.mark.task("4.4.4")
@pytest.mark.parametrize(
    ("answer", "in_flight", "blocks"),
    [("x", 0, 1), ("x", 1, 1), ("x", 2, 2), ("xy", 0, 1), ("xy", 1, 2), ("xy", 2, 2)],
)
def test_a_placeholder_has_a_slot(s, answer, in_flight, blocks):
    """Blocks of 4 tokens, 2 tokens of prompt: the device writes keys and values of the placeholder as well."""
    engine = Ahead(s)
    made = running(engine, "ab", answer, in_flight)
    assert engine.s.make_room_ahead(engine.scheduler, made) is True
    assert len(made.block_table.blocks) == blocks, (
        f"{2 + len(answer)} known tokens, {in_flight} placeholders: {made.block_table.blocks}"
    )


@pytest.mark.task("4.4.4")
@pytest.mark.parametrize(("in_flight", "blocks"), [(4, 2), (5, 2), (6, 2)])
def test_a_token_that_is_known_needs_one_slot(s, in_flight, blocks):
    """Six known tokens that are computed again: what is in flight of them is no placeholder."""
    engine = Ahead(s)
    made = running(engine, "abcd", "xy", in_flight, computed=0)
    assert engine.s.make_room_ahead(engine.scheduler, made) is True
    assert len(made.block_table.blocks) == blocks, f"{in_flight} of 6 known tokens in flight"


@pytest.mark.task("4.4.4")
def test_nobody_is_preempted_where_no_block_is_missing(s):
    """No block is free, and none is needed: the last block has a slot for the placeholder."""
    engine = Ahead(s, num_blocks=2)
    made, other = running(engine, "ab", "x", 1), running(engine, "cd", "x", 0)
    assert engine.s.make_room_ahead(engine.scheduler, made) is True
    assert engine.loop.running == [made, other], "a request lost its place, and no block was missing"


@pytest.mark.task("4.4.4")
def test_the_youngest_makes_room_for_a_placeholder(s):
    """No block is free: the youngest request gives its blocks back, in flight or not, and no other does."""
    engine = Ahead(s, num_blocks=4)
    oldest, middle, youngest = (
        running(engine, "ab", "xy", 1),
        running(engine, "cd", "x", 0),
        running(engine, "efghi", "", 1),
    )
    assert engine.s.make_room_ahead(engine.scheduler, oldest) is True, "it runs: there is a younger one"
    assert engine.loop.running == [oldest, middle], "the youngest waits again, the others run"
    assert (youngest.num_preemptions, middle.num_preemptions) == (1, 0), "the youngest is preempted once"
    assert youngest.num_in_flight == 0, "what is in flight of a preempted request is dropped: call `preempt`"
    assert len(oldest.block_table.blocks) == 2


@pytest.mark.task("4.4.4")
def test_requests_are_preempted_until_a_block_is_free(s):
    """The youngest shares its blocks with another request, so its preemption frees none: the next one follows."""
    engine = Ahead(s, num_blocks=2)
    oldest, middle = running(engine, "ab", "xy", 1), running(engine, "cd", "x", 1)
    youngest = running(engine, "", "", 0, computed=0)
    engine.allocator.fork(oldest.block_table.blocks)
    youngest.block_table.blocks = [*oldest.block_table.blocks]
    assert engine.s.make_room_ahead(engine.scheduler, oldest) is True, "it runs: there are younger ones"
    assert engine.loop.running == [oldest], "one preemption has freed no block, and a second one is needed"
    assert (middle.num_preemptions, youngest.num_preemptions) == (1, 1), "each of them is preempted once"


@pytest.mark.task("4.4.4")
def test_the_last_free_block_is_enough(s):
    """A running request may use it, watermark or not; nobody is preempted while a block is free."""
    engine = Ahead(s, num_blocks=3)
    engine.allocator.watermark_blocks = 1
    made, other = running(engine, "ab", "xy", 1), running(engine, "cd", "x", 0)
    assert engine.s.make_room_ahead(engine.scheduler, made) is True
    assert engine.loop.running == [made, other], "a block is free, and nobody has to give one up"
    assert (len(made.block_table.blocks), engine.allocator.num_free) == (2, 0)


@pytest.mark.task("4.4.4")
def test_the_youngest_gives_up_its_own_place(s):
    """It does not run any more, so it is not planned. What is in flight of it is dropped."""
    engine = Ahead(s, num_blocks=2)
    oldest, youngest = running(engine, "cd", "x", 0), running(engine, "ab", "xy", 1)
    assert engine.s.make_room_ahead(engine.scheduler, youngest) is False, "it has no place: False says so"
    assert engine.loop.running == [oldest], "the older request keeps its place"
    assert youngest.num_in_flight == 0, "what is in flight of a preempted request is dropped: call `preempt`"
    assert (youngest.num_computed, engine.allocator.num_free) == (0, 1), "its blocks are free again"


# A row that nobody can fill in yet.


def entries(s, allocator):
    """Three requests with their blocks: a placeholder, a known last token, and a chunk of a prompt."""
    ahead = request(s, "abcde", "xy", 6, 1, 0, temperature=0.5)
    plain = request(s, "fgh", "z", 3, 0, 1)
    prompt = request(s, "ijklmn", "", 2, 0, 2)
    for one in (ahead, plain, prompt):
        one.block_table = s.BlockTable(allocator)
        one.block_table.reserve(len(one.known_tokens) + 1)
    return ahead, plain, prompt


@pytest.mark.task("4.4.5")
def test_a_placeholder_says_where_its_token_comes_from(s):
    """Its place among the draws of the batch before, which is in another order than the plan."""
    ahead, plain, prompt = entries(s, s.BlockAllocator(16, 4))
    other = request(s, "o", "", 0, 1, 3)
    other.block_table = s.BlockTable(s.BlockAllocator(4, 4))
    other.block_table.reserve(2)
    plan = [
        s.Scheduled(other, 1, 1),
        s.Scheduled(plain, 3, 1),
        s.Scheduled(ahead, 7, 1),
        s.Scheduled(prompt, 2, 4),
    ]
    batch = s.pack_ahead(plan, [request(s, "p", number=9), ahead, other])
    assert batch.sources == [2, -1, 1, -1, -1, -1, -1], (
        f"{batch.sources}: a place among the draws of the batch before, -1 if known"
    )
    assert batch.token_ids == [0, ord("z"), 0, *b"klmn"], f"{batch.token_ids}: known ids, 0 for a placeholder"
    assert batch.sample_rows == [0, 1, 2, 6], f"{batch.sample_rows}: a placeholder's row draws the next token"
    assert batch.sampling == [other.sampling, plain.sampling, ahead.sampling, prompt.sampling]


@pytest.mark.task("4.4.5")
def test_a_placeholder_has_a_position_and_a_slot(s):
    """Those of the token that it stands for. All tokens before it are its past, in flight or not."""
    ahead, plain, _ = entries(s, s.BlockAllocator(16, 4))
    batch = s.pack_ahead([s.Scheduled(plain, 3, 1), s.Scheduled(ahead, 7, 1)], [ahead])
    assert batch.positions == [3, 7], f"{batch.positions}: the placeholder is token 7 of its text"
    slots = [*plain.block_table.slots(3, 4), *ahead.block_table.slots(7, 8)]
    assert batch.slots == slots, f"{batch.slots}, not {slots}: the slots of these positions"
    assert batch.query_start == [0, 1, 2]
    assert batch.context_lens == [3, 7], (
        f"{batch.context_lens}: 7 tokens are before it, one of them in flight"
    )
    assert batch.block_tables == [plain.block_table.blocks, ahead.block_table.blocks]


@pytest.mark.task("4.4.5")
@pytest.mark.parametrize("drawn", [0, 2])
def test_a_batch_without_placeholders_has_no_sources(s, drawn):
    """Then it is the batch of Day 3.3, whatever the batch before has drawn."""
    _, plain, prompt = entries(s, s.BlockAllocator(16, 4))
    plan = [s.Scheduled(plain, 3, 1), s.Scheduled(prompt, 2, 3)]
    batch = s.pack_ahead(plan, [prompt, plain][:drawn])
    assert batch.sources == [], f"{batch.sources}: all tokens are known, so there are no sources"
    assert batch == s.pack(plan), f"all tokens are known, so it is what `pack` makes: {s.pack(plan)}"


@pytest.mark.task("4.4.5")
def test_a_known_token_is_no_placeholder(s):
    """A request that was preempted comes back while its old step is in flight: that one draws nothing for it now."""
    ahead, plain, prompt = entries(s, s.BlockAllocator(16, 4))
    plan = [s.Scheduled(ahead, 7, 1), s.Scheduled(prompt, 2, 4), s.Scheduled(plain, 3, 1)]
    batch = s.pack_ahead(plan, [plain, prompt, ahead])
    assert batch.sources == [2, -1, -1, -1, -1, -1], f"{batch.sources}: only what is not known is taken"
    assert batch.token_ids == [0, *b"klmn", ord("z")]


@pytest.mark.task("4.4.5")
def test_a_chunk_after_a_chunk_in_flight_is_known(s):
    """What is in flight of a request says nothing about its next rows: the rest of a prompt is known."""
    _, _, prompt = entries(s, s.BlockAllocator(16, 4))
    prompt.num_computed, prompt.num_in_flight = 0, 5
    batch = s.pack_ahead([s.Scheduled(prompt, 5, 1)], [prompt])
    assert (batch.token_ids, batch.sources) == ([*b"n"], []), (
        f"ids {batch.token_ids}, sources {batch.sources}: the last token of a prompt is known"
    )


@pytest.mark.task("4.4.5")
def test_stops_and_neighbours_in_one_load(s):
    """Prompts, ends and limits at different steps: a source that is off by one is a wrong answer."""
    engine = Ahead(s, model={"ends": 7}, max_num_batched_tokens=9)
    for number, text in enumerate(("abc", "defghijklmno", "p", "qrstu", "vw", "xyzabcd")):
        engine.send(text, max_tokens=3 + 5 * number)
    engine.finish()


@pytest.mark.task("4.4.5")
@pytest.mark.parametrize("num_blocks", [8, 9, 11])
def test_requests_in_flight_are_preempted_and_come_back(s, num_blocks):
    """Few blocks: a request loses them while two steps of it are in flight. Each answer stays what it was."""
    engine = Ahead(s, num_blocks, 4, max_num_batched_tokens=12)
    for text in ("abcdefg", "hijk", "lmnopq"):
        engine.send(text, max_tokens=14)
    engine.finish()
    assert "preempt" in {event.kind for event in engine.events}


LOAD = st.tuples(
    st.integers(1, 18), st.integers(1, 9), st.integers(0, 6), st.none() | st.integers(0, 9), st.booleans()
)


@pytest.mark.task("4.4.5")
@settings(max_examples=60)
@given(
    plans=st.lists(LOAD, min_size=1, max_size=7),
    blocks=st.integers(8, 24),
    budget=st.integers(8, 20),
    ends=st.sampled_from([0, 5, 9]),
    caching=st.booleans(),
)
def test_random_loads_give_the_answers_of_one_step_at_a_time(s, plans, blocks, budget, ends, caching):
    """Chunks, shared prefixes, preemptions in flight, aborts at any time, requests that wait; no block is lost."""
    engine = Ahead(s, blocks, caching=caching, model={"ends": ends}, max_num_batched_tokens=budget)
    ending = {}
    for number in range(300):
        for size, max_tokens, arrival, end, waits in plans:
            if arrival == number:
                text = "shared beginning of all"[:size] if size % 3 else chr(ord("A") + len(ending)) * size
                made = engine.send(
                    text, max_tokens=max_tokens, **({"presence_penalty": 1.0} if waits else {})
                )
                ending[made] = None if end is None else number + end
        for made, end in ending.items():
            if end == number:
                made.abort()
        if number > 6 and not engine.loop.has_work_remaining():
            break
        engine.loop.step()
    engine.check_answers()


# Filled in on the device.


def filled(b, ids, sources, last, dtype=np.int64):
    """`fill_placeholders` of lists."""
    arrays = [
        b.array(np.array(values, kind))
        for values, kind in ((ids, dtype), (sources, np.int64), (last, np.int64))
    ]
    return b.numpy(b.fill_placeholders(*arrays)).tolist()


@pytest.mark.task("4.4.6")
@pytest.mark.parametrize(
    ("ids", "sources", "last", "expected"),
    [
        ([5, 0, 7], [-1, 0, -1], [40], [5, 40, 7]),
        ([0, 0, 0], [2, 0, 1], [40, 41, 42], [42, 40, 41]),
        ([5, 0, 6, 0], [-1, 3, -1, 0], [40, 41, 42, 43, 44], [5, 43, 6, 40]),
        ([5, 6], [-1, -1], [40, 41, 42], [5, 6]),
        ([0], [1], [40, 41], [41]),
        ([0, 0, 9], [-1, 0, -1], [0], [0, 0, 9]),
        ([0, 3, 0, 4], [-1, 1, 0, -1], [40, 41], [0, 41, 40, 4]),
        ([7, 8, 9], [1, -1, 1], [40, 41], [41, 8, 41]),
        ([151_645, 0], [-1, 0], [151_643], [151_645, 151_643]),  # half precision has no such numbers
    ],
)
def test_fill_placeholders(b, ids, sources, last, expected):
    """A row takes the draw that its source names. Token 0 is a token; what a placeholder holds does not matter."""
    found = filled(b, ids, sources, last)
    assert found == expected, f"ids {ids}, sources {sources}, drawn {last}: {found}, not {expected}"


@pytest.mark.task("4.4.6")
def test_fill_placeholders_of_any_step(b, rng):
    """More rows than draws, and more draws than rows, in any order."""
    for rows, draws in ((1, 9), (40, 3), (17, 17)):
        ids, last = rng.integers(0, 1000, rows), rng.integers(0, 1000, draws)
        sources = rng.integers(-1, draws, rows)
        expected = [
            int(token) if source < 0 else int(last[source])
            for token, source in zip(ids, sources, strict=True)
        ]
        assert filled(b, ids, sources, last) == expected, f"{rows} rows, {draws} draws"


@pytest.mark.task("4.4.6")
def test_fill_placeholders_keeps_type_and_inputs(b):
    """A graph that was captured for the ids of a step needs their type, and its inputs are used again."""
    ids = b.array(np.array([5, 6, 7], np.int32))
    drawn = b.backend_module.argmax(
        b.array(np.eye(3, 41, 38, dtype=np.float32))
    )  # 38, 39, 40 in the device's type
    found = b.fill_placeholders(ids, b.array(np.array([-1, 2, -1])), drawn)
    assert found.dtype == ids.dtype, f"ids of {ids.dtype} became {found.dtype}"
    assert b.numpy(ids).tolist() == [5, 6, 7], "the ids that were given are changed"
    assert b.numpy(found).tolist() == [5, 40, 7]


@pytest.mark.task("4.4.6")
def test_fill_placeholders_reads_nothing(b):
    """Not the number of placeholders either: the host would wait for the step that is still being computed."""
    arrays = [b.array(np.array(values)) for values in ([5, 0, 7], [-1, 0, -1], [40, 41])]
    found = assert_traces(b, b.fill_placeholders, *arrays, idea="the host reads what the device has drawn")
    assert tuple(found.shape) == (3,)


class TwoSteps:
    """A packed runner as a `PipelinedModel`: a batch is computed at once, and its tokens are collected later."""

    num_stages = 2

    def __init__(self, b, runner):
        self.b, self.runner = b, runner
        self.tokens, self.drawn = deque(), [0]

    def __getattr__(self, name):
        return getattr(self.runner, name)

    def submit(self, batch):
        if batch.sources:
            batch = replace(batch, token_ids=filled(self.b, batch.token_ids, batch.sources, self.drawn))
        self.tokens.append(self.runner.run(batch))
        self.drawn = [one.token for one in self.tokens[-1]] or [0]

    def collect(self):
        return self.tokens.popleft()

    def abandon(self):
        self.tokens.clear()


@pytest.mark.task("4.4.6")
def test_a_model_answers_as_one_step_at_a_time(b, s, rng):
    """A small random model: greedy, with a seed, with a penalty, with log-probabilities; chunks and few blocks."""
    model = b.Qwen3ModelWeek3(random_checkpoint(b, QWEN))
    samplings = (
        {},
        {"temperature": 1.0, "seed": 5},
        {"temperature": 1.2, "repetition_penalty": 1.6},
        {"logprobs": 2},
    )
    texts = [rng.integers(0, 61, size=length).tolist() for length in (9, 5, 7, 20)]

    def answers(ahead):
        serving = PackedServing(b, s, model, num_blocks=17)
        runner = TwoSteps(b, serving.runner) if ahead else serving.runner
        limits = {"max_num_batched_tokens": 12, "max_num_seqs": 4, "async_scheduling": ahead}
        loop = make_loop(s, "hybrid", runner, serving.allocator, **limits)
        made = [
            serving.new_sequence(text, number, max_tokens=12, **sampling)
            for number, (text, sampling) in enumerate(zip(texts, samplings, strict=True))
        ]
        for one in made:
            loop.add(one)
        for _ in steps_of(loop, made):
            loop.step()
        assert serving.allocator.num_free == serving.allocator.num_blocks
        return [one.tokens for one in made]

    expected, found = answers(False), answers(True)
    for sampling, ahead, alone in zip(samplings, found, expected, strict=True):
        assert ahead == alone, f"with {sampling}: {ahead}, one step at a time {alone}"
