"""Week 3 Day 7: many devices, the side of the integers: shards, stages, micro-batches in flight, and routing.

Oracles: exact tables and traces; the answer of each request when it runs alone; one replica's time for incident 16.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.pipeline import Pipeline
from support.routing_incident import MOST, ROUTED_CASES, RoutedRun, share_of_one
from support.steps import steps_of
from tiny_llm_engine.step_loop import OneByOne

# Which heads of keys and values a rank holds.


@pytest.mark.task("3.7.1")
@pytest.mark.parametrize(
    ("num_kv_heads", "size", "heads"),
    [
        (8, 1, [range(8)]),
        (8, 2, [range(4), range(4, 8)]),
        (6, 3, [range(2), range(2, 4), range(4, 6)]),
        (4, 4, [range(1), range(1, 2), range(2, 3), range(3, 4)]),
        (2, 4, [range(1), range(1), range(1, 2), range(1, 2)]),
        (1, 3, [range(1), range(1), range(1)]),
        (3, 6, [range(1), range(1), range(1, 2), range(1, 2), range(2, 3), range(2, 3)]),
        (2, 6, [range(1), range(1), range(1), range(1, 2), range(1, 2), range(1, 2)]),
    ],
)
def test_key_heads_are_divided_in_order_or_shared_by_neighbours(s, num_kv_heads, size, heads):
    """An equal part of them; with more ranks than heads one head, the same for ranks that stand next to each other."""
    found = [s.kv_heads_of(num_kv_heads, rank, size) for rank in range(size)]
    assert found == heads, f"{num_kv_heads} heads on {size} ranks are {heads}, not {found}"


@pytest.mark.task("3.7.1")
@given(st.integers(1, 12), st.integers(1, 4), st.integers(1, 12), st.booleans())
def test_key_heads_are_those_that_the_query_heads_read(s, heads, per_group, ranks, shared):
    """Query heads go to the ranks in order, and query head h reads key head h // (H // Hkv)."""
    num_kv_heads, size = (heads, heads * ranks) if shared else (heads * ranks, ranks)
    num_heads = num_kv_heads * per_group * (ranks if shared else 1)
    per_head = num_heads // num_kv_heads
    for rank in range(size):
        queries = s.even_part(num_heads, rank, size)
        read, found = {head // per_head for head in queries}, s.kv_heads_of(num_kv_heads, rank, size)
        assert set(found) == read, (
            f"{num_heads} query heads, {num_kv_heads} key heads, {size} ranks: the query heads of rank {rank} read "
            f"{sorted(read)}, and it holds {list(found)}"
        )


# Which part of each weight.

LAYER = "model.layers.0."


@pytest.mark.task("3.7.2")
@pytest.mark.parametrize(
    ("name", "shape", "rank", "size", "expected"),
    [
        ("self_attn.q_proj.weight", (24, 20), 1, 2, ((12, 24), None)),
        ("self_attn.q_proj.bias", (24,), 1, 2, ((12, 24), None)),
        ("self_attn.k_proj.weight", (12, 20), 1, 2, ((6, 12), None)),
        ("self_attn.k_proj.weight", (12, 20), 1, 4, ((0, 6), None)),
        ("self_attn.v_proj.weight", (12, 20), 2, 4, ((6, 12), None)),
        ("self_attn.k_proj.bias", (12,), 0, 2, ((0, 6), None)),
        ("self_attn.v_proj.bias", (12,), 3, 4, ((6, 12), None)),
        ("self_attn.o_proj.weight", (20, 24), 1, 2, (None, (12, 24))),
        ("self_attn.o_proj.bias", (20,), 1, 2, (None, None)),
        ("mlp.gate_proj.weight", (32, 20), 3, 4, ((24, 32), None)),
        ("mlp.up_proj.weight", (32, 20), 0, 4, ((0, 8), None)),
        ("mlp.up_proj.bias", (32,), 1, 4, ((8, 16), None)),
        ("mlp.down_proj.weight", (20, 32), 2, 4, (None, (16, 24))),
        ("mlp.down_proj.bias", (20,), 2, 4, (None, None)),
        ("input_layernorm.weight", (20,), 1, 2, (None, None)),
        ("self_attn.q_norm.weight", (6,), 1, 2, (None, None)),
        ("self_attn.k_norm.weight", (6,), 1, 2, (None, None)),
    ],
)
def test_shard_of_a_layer(s, name, shape, rank, size, expected):
    """Two heads of keys. Rows of a column-parallel layer, columns of a row-parallel one; the rest is whole."""
    found = s.shard_of(LAYER + name, shape, rank, size, num_kv_heads=2)
    assert ends(found) == expected, f"rank {rank} of {size}, {name} {shape}: {ends(found)}, not {expected}"


def ends(shard):
    """(start, stop) of the rows and of the columns."""
    return tuple(None if axis is None else (axis.start, axis.stop) for axis in (shard.rows, shard.columns))


@pytest.mark.task("3.7.2")
@pytest.mark.parametrize(("rank", "rows"), [(0, (0, 18)), (1, (18, 36))])
def test_shard_of_several_heads_of_keys(s, rank, rows):
    """Six heads of six rows on two ranks: three heads each."""
    found = ends(s.shard_of(LAYER + "self_attn.k_proj.weight", (36, 20), rank, 2, num_kv_heads=6))
    assert found == (rows, None), f"rank {rank} of 2 holds 3 of 6 heads: rows {rows}, not {found[0]}"


@pytest.mark.task("3.7.2")
@pytest.mark.parametrize("name", ["model.embed_tokens.weight", "lm_head.weight"])
@pytest.mark.parametrize(
    ("vocab_size", "size", "rows"),
    [(60, 2, [(0, 30), (30, 60)]), (61, 4, [(0, 16), (16, 32), (32, 48), (48, 61)])],
)
def test_shard_of_the_vocabulary(s, name, vocab_size, size, rows):
    """The table and the head go by `vocabulary_of`: the last ranks have fewer ids, and no id is left out."""
    found = [ends(s.shard_of(name, (vocab_size, 20), rank, size, 2)) for rank in range(size)]
    assert found == [(each, None) for each in rows]


@pytest.mark.task("3.7.2")
def test_shard_of_norms_outside_of_layers(s):
    assert ends(s.shard_of("model.norm.weight", (20,), 1, 2, 2)) == (None, None)


@pytest.mark.task("3.7.2")
@pytest.mark.parametrize("size", [2, 4])
def test_the_ranks_together_hold_every_number(s, size):
    """Numbers of a divided weight are on one rank each; keys and values on two of four, because there are two heads."""
    layer = {
        "q_proj": (24, 20),
        "k_proj": (12, 20),
        "o_proj": (20, 24),
        "up_proj": (32, 20),
        "down_proj": (20, 32),
    }
    for name, shape in layer.items():
        count = {}
        for rank in range(size):
            shard = s.shard_of(f"{LAYER}x.{name}.weight", shape, rank, size, 2)
            for row in shard.rows or range(shape[0]):
                for column in shard.columns or range(shape[1]):
                    count[row, column] = count.get((row, column), 0) + 1
        holders = size // 2 if name == "k_proj" else 1
        assert len(count) == shape[0] * shape[1], f"{name}: no rank holds some of its numbers"
        assert set(count.values()) == {holders}, f"{name}: numbers are on {set(count.values())} ranks"


# The layers of a stage.


@pytest.mark.task("3.7.6")
@pytest.mark.parametrize(
    ("num_layers", "num_stages", "sizes"),
    [
        (4, 2, [2, 2]),
        (5, 2, [3, 2]),
        (28, 3, [10, 9, 9]),
        (7, 4, [2, 2, 2, 1]),
        (8, 5, [2, 2, 2, 1, 1]),
        (3, 3, [1, 1, 1]),
        (6, 1, [6]),
    ],
)
def test_the_first_stages_have_one_layer_more(s, num_layers, num_stages, sizes):
    """The head is on the last stage and costs as much as several layers."""
    found = [len(s.stage_layers(num_layers, num_stages, stage)) for stage in range(num_stages)]
    assert found == sizes, f"{num_layers} layers on {num_stages} stages are {sizes}, not {found}"


@pytest.mark.task("3.7.6")
@given(st.integers(1, 80), st.integers(1, 16))
def test_stages_cover_the_layers_in_order(s, num_layers, num_stages):
    """Consecutive layers, each on one stage, and no stage has two more than another."""
    if num_stages > num_layers:
        with pytest.raises(ValueError, match=f"give at most {num_layers}"):
            s.stage_layers(num_layers, num_stages, 0)
        return
    stages = [s.stage_layers(num_layers, num_stages, stage) for stage in range(num_stages)]
    assert [layer for stage in stages for layer in stage] == list(range(num_layers)), f"stages have {stages}"
    sizes = list(map(len, stages))
    assert max(sizes) - min(sizes) <= 1, f"stages have {sizes} layers"


# Micro-batches in flight.


@pytest.mark.task("3.7.8")
@pytest.mark.parametrize("stages", [2, 3])
def test_fill_keeps_every_stage_busy_with_one_long_prompt(s, stages):
    """The next chunk is submitted while the last one is on its way, for it waits for no token."""
    pipeline = Pipeline(s, stages)
    made = pipeline.add(30, max_tokens=3)
    pipeline.fill()
    assert pipeline.sizes() == [[8]] * stages, (
        f"one chunk for each stage before the first result, not {pipeline.sizes()}"
    )
    assert (made.num_computed, made.num_in_flight) == (0, 8 * stages), "what was submitted is in flight"
    pipeline.finish()
    assert pipeline.sizes() == [[8], [8], [8], [6], [1], [1]]
    pipeline.check_answers()


@pytest.mark.task("3.7.8")
def test_fill_remembers_each_plan_and_when_it_was_made(s):
    """The clock moves while a micro-batch is submitted, so each has its own time."""
    pipeline = Pipeline(s, 2, max_num_batched_tokens=12)
    pipeline.add(5)
    pipeline.add(30)
    pipeline.fill()
    found = [
        (
            each.start,
            [(entry.sequence.request_id, entry.start, entry.stop) for entry in each.plan],
            each.draws,
        )
        for each in pipeline.in_flight
    ]
    first, second = (0, [(0, 0, 5), (1, 0, 7)], [True, False]), (12, [(1, 7, 19)], [False])
    assert found == [first, second], f"in flight, with the time of each plan: {found}"


@pytest.mark.task("3.7.8")
def test_fill_plans_nothing_while_every_stage_has_work(s):
    """Planning admits requests and reserves blocks, and a plan that is not submitted is lost."""
    pipeline = Pipeline(s, 2, max_num_seqs=8)
    plans, plan = [], pipeline.loop.plan
    pipeline.loop.plan = lambda now: plans.append(plan(now)) or plans[-1]
    for size in (7, 20, 9, 3):
        pipeline.add(size, max_tokens=5)
    pipeline.finish()
    found, submitted = sum(1 for each in plans if each), len(pipeline.model.batches)
    assert found == submitted, f"{found} plans were made, and {submitted} submitted"
    pipeline.check_answers()


@pytest.mark.task("3.7.8")
@pytest.mark.parametrize(
    ("requests", "stages", "shares"), [(4, 2, [2, 2]), (5, 2, [3, 2]), (7, 3, [3, 3, 1])]
)
def test_fill_gives_every_stage_a_share_of_the_decodes(s, requests, stages, shares):
    """Otherwise all would be in one micro-batch, and the other stages would wait for its tokens."""
    pipeline = Pipeline(s, stages, max_num_batched_tokens=64)
    for _ in range(requests):
        pipeline.add(2, max_tokens=8)
    for _ in steps_of(pipeline.loop, pipeline.sequences):
        if all(len(made.tokens) >= 3 for made in pipeline.sequences):
            break
        pipeline.loop.step()
    found = sorted(map(len, pipeline.sizes()[-stages:]), reverse=True)
    assert found == shares, f"{requests} decodes on {stages} stages: micro-batches of {shares}, not {found}"
    pipeline.finish()
    pipeline.check_answers()


@pytest.mark.task("3.7.8")
def test_a_decode_waits_for_its_token(s):
    """One request that decodes has one micro-batch in flight."""
    pipeline = Pipeline(s)
    pipeline.add(3, max_tokens=5)
    pipeline.finish()
    assert pipeline.model.most == 1, f"{pipeline.model.most} micro-batches of one request that decodes"
    pipeline.check_answers()


@pytest.mark.task("3.7.8")
def test_a_request_that_comes_back_computes_each_token_once(s):
    """Its last chunk is one token of its answer, as a decode is, and chunks before it are on their way."""
    pipeline = Pipeline(s, 4)
    made = pipeline.add(12, max_tokens=8)
    for _ in steps_of(pipeline.loop, pipeline.sequences):
        if len(made.tokens) == 5:
            break
        pipeline.loop.step()
    pipeline.scheduler.preempt(made)
    before = len(pipeline.model.batches)
    pipeline.finish()
    found = pipeline.sizes()[before:]
    assert found == [[8], [8], [1], [1], [1]], f"17 tokens in chunks of 8 at most, two decodes, not {found}"
    pipeline.check_answers()


@pytest.mark.task("3.7.8")
def test_with_one_stage_the_steps_are_those_of_day_3_3(s):
    """The same plans in the same order, and the same events at the same times."""
    found = []
    for calls in (None, OneByOne):
        pipeline = Pipeline(s, 1, num_blocks=7)
        if calls is not None:
            pipeline.loop.calls = calls(pipeline.loop)
        for size in (11, 3, 9):
            pipeline.add(size, max_tokens=6)
        pipeline.finish()
        found.append((pipeline.sizes(), [(each.kind, each.time) for each in pipeline.events]))
    assert found[0][0] == found[1][0], f"micro-batches {found[0][0]}, steps {found[1][0]}"
    assert found[0][1] == found[1][1], "the events differ, or their times"
    assert "preempt" in {kind for kind, _ in found[0][1]}


@pytest.mark.task("3.7.8")
def test_a_plan_of_two_calls_is_two_micro_batches(s):
    """With `mixed_steps=False` chunks and decodes are calls of their own: each is remembered and submitted."""
    pipeline = Pipeline(s, 2, mixed_steps=False, model={"places": 3})
    for size in (2, 3, 18):
        pipeline.add(size, max_tokens=6)
    for _ in steps_of(pipeline.loop, pipeline.sequences):
        pipeline.loop.step()
        remembered, submitted = len(pipeline.in_flight), len(pipeline.model.on_the_way)
        assert remembered == submitted, f"{submitted} calls were submitted, and {remembered} are in flight"
    assert pipeline.model.most == 3, "the plan that fills the last place has two calls"
    pipeline.check_answers()


@pytest.mark.task("3.7.8")
def test_a_call_that_was_never_submitted_is_not_in_flight(s):
    """The first call of a plan of two is refused: its request ends, and the decode of the second call goes on."""
    pipeline, planned = Pipeline(s, 2, mixed_steps=False, model={"places": 3}), []
    for size in (2, 3, 18):
        pipeline.add(size, max_tokens=6)
    calls_of = pipeline.scheduler.calls

    def calls(plan):
        found = calls_of(plan)
        if len(found) == 2 and not planned:
            planned.extend(found)
            pipeline.model.refuses = {len(pipeline.model.batches): ConnectionError("a stage is gone")}
        return found

    pipeline.scheduler.calls = calls
    with pytest.raises(ConnectionError, match="a stage is gone"):
        pipeline.finish()
    chunks, decodes = ([entry.sequence for entry in call] for call in planned)
    assert [each.error for each in chunks] == ["a stage is gone"] * len(chunks)
    assert [each.error for each in decodes] == [None] * len(decodes), "they were not submitted, and ended"
    pipeline.model.refuses = {}
    pipeline.model.on_the_way.clear()
    pipeline.finish()
    assert [each.tokens for each in decodes] == [pipeline.answer_of(each) for each in decodes]


@pytest.mark.task("3.7.8")
def test_a_batch_that_cannot_be_submitted_ends_its_own_requests(s):
    """It is in flight before `submit` is called: what is not remembered cannot be ended, and keeps its blocks."""
    pipeline = Pipeline(s, model={"refuses": {1: ConnectionError("a stage is gone")}}, max_num_seqs=2)
    made = [pipeline.add(8), pipeline.add(8), pipeline.add(8)]
    with pytest.raises(ConnectionError, match="a stage is gone"):
        pipeline.loop.step()
    found = [each.error for each in made]
    assert found == ["a stage is gone", "a stage is gone", None], (
        f"one request a micro-batch; errors: {found}"
    )
    pipeline.model.refuses = {}
    pipeline.model.on_the_way.clear()
    pipeline.finish()
    assert made[2].tokens == pipeline.answer_of(made[2])
    assert pipeline.allocator.num_free == pipeline.allocator.num_blocks, "blocks are lost"


@pytest.mark.task("3.7.8")
def test_a_token_goes_to_the_request_that_it_was_drawn_for(s):
    """The last chunk of a prompt and another prompt share a micro-batch, and the first is aborted on its way."""
    pipeline = Pipeline(s, 2, max_num_batched_tokens=8)
    first, other = pipeline.add(12, 4), pipeline.add(3, 4)
    pipeline.loop.step()
    [flying] = pipeline.in_flight
    assert [entry.sequence for entry in flying.plan] == [first, other], "4 tokens of one prompt, 3 of another"
    first.abort()
    for _ in steps_of(pipeline.loop, pipeline.sequences):
        pipeline.loop.step()
    assert (first.tokens, other.tokens) == ([], pipeline.answer_of(other)), (
        "the token of an aborted request is nobody's"
    )


@pytest.mark.task("3.7.8")
@settings(max_examples=40)
@given(data=st.data(), stages=st.integers(1, 3), caching=st.booleans())
def test_random_loads_give_the_answers_of_solo_runs(s, data, stages, caching):
    """Small pools, preemptions of requests in flight, aborts at any time; no block is lost."""
    pipeline = Pipeline(s, stages, data.draw(st.integers(8, 24)), caching=caching)
    sizes, delays = (
        (st.integers(1, 20), st.integers(1, 8)),
        (st.integers(0, 6), st.none() | st.integers(0, 9)),
    )
    plans = data.draw(st.lists(st.tuples(*sizes, *delays), min_size=1, max_size=7))
    ends = {}
    for number in range(300):
        for size, max_tokens, arrival, end in plans:
            if arrival == number:
                made = pipeline.add(size, max_tokens)
                ends[made] = None if end is None else number + end
        for made, end in ends.items():
            if end == number:
                made.abort()
        if number > 6 and not pipeline.loop.has_work_remaining():
            break
        pipeline.loop.step()
    for made in pipeline.sequences:
        assert made.is_done, f"request {made.request_id} has not ended"
        alone = pipeline.answer_of(made)
        assert made.tokens == alone[: len(made.tokens)], f"{made.tokens}, alone {alone}"
        assert made.finish_reason == "abort" or made.tokens == alone
    assert pipeline.allocator.num_free == pipeline.allocator.num_blocks, "blocks are lost"


# The choice of a replica.


@pytest.mark.task("3.7.9")
@pytest.mark.parametrize(
    ("outstanding", "cached", "chosen", "idea"),
    [
        ((30, 10, 20), (0, 0, 0), "b", "the fewest outstanding tokens"),
        ((30, 10), (24, 0), "a", "6 tokens left to compute, against 10: cached tokens are a discount"),
        ((30, 10), (16, 0), "b", "14 tokens left to compute, against 10: affinity does not always win"),
        ((30, 10), (24, 8), "b", "6 against 2: what the idle replica has cached counts too"),
        ((8, 0), (8, 0), "b", "equal when cached tokens are deducted: the shorter queue"),
        ((0, 8), (0, 8), "a", "equal when cached tokens are deducted: the shorter queue"),
        ((5, 5, 5), (1, 1, 1), "a", "all are equal: the first one"),
        ((0, 0), (8, 16), "b", "both are idle: the warmer cache, though less than nothing is outstanding"),
        ((100, 90), (64, 0), "a", "36 against 90"),
        ((20, 0), (24, 16), "b", "16 less than nothing against 4: the warmest cache is not always the best"),
    ],
)
def test_choose_replica(s, outstanding, cached, chosen, idea):
    names = "abc"[: len(outstanding)]
    found = s.choose_replica(
        dict(zip(names, outstanding, strict=True)), dict(zip(names, cached, strict=True))
    )
    assert found == chosen, f"outstanding {outstanding}, cached {cached}: {idea}: {chosen!r}, not {found!r}"


@pytest.mark.task("3.7.9")
def test_among_equals_the_order_of_the_replicas_decides_and_not_their_names(s):
    """`ReplicaLoads` lists the one that was chosen last at the end, so idle replicas take turns."""
    assert s.choose_replica({"b": 0, "a": 0}, {"a": 0, "b": 0}) == "b"
    loads = s.ReplicaLoads(4)
    loads.set_replicas("abc")
    chosen = []
    for number in range(6):
        chosen.append(loads.send(number, [number] * 4, 1))
        loads.finish(number)
    assert chosen == [*"abcabc"], f"idle replicas take turns, not {chosen}"


@pytest.mark.task("3.7.9")
def test_conversations_stay_where_their_prefixes_are(s):
    loads = s.ReplicaLoads(4)
    loads.set_replicas("ab")
    texts = {name: [number] * 40 for number, name in enumerate(("one", "other"))}
    places = {name: loads.send(name, text, 1) for name, text in texts.items()}
    assert set(places.values()) == {"a", "b"}, "the second finds the first replica busy"
    for turn in range(1, 4):
        for name in reversed(texts):
            loads.finish(name)
            found = loads.send(name, texts[name] + [9] * turn, 1)
            assert found == places[name], (
                f"turn {turn} of {name!r} went to {found!r}: its prefix is not there"
            )


@pytest.mark.task("3.7.9")
def test_no_replica_is_ahead_by_more_than_one_request(s):
    """Prompts without a common block: the difference between the queues is at most the longest request."""
    loads = s.ReplicaLoads(4)
    loads.set_replicas("abc")
    for number, size in enumerate([40, 3, 3, 20, 1, 9, 30, 2, 5, 50, 4, 4]):
        loads.send(number, [number] * size, 2)
        queues = loads.outstanding.values()
        assert max(queues) - min(queues) <= 52, f"after request {number}: {loads.outstanding}"


@pytest.mark.task("3.7.9")
@pytest.mark.parametrize("case", ROUTED_CASES, ids=lambda case: case.title)
def test_two_replicas_share_the_work_of_incident_16(s, case):
    """In virtual time. An even division takes half of the time of one replica."""
    share = share_of_one(s, case, lambda: s.ReplicaLoads(16))
    assert share <= MOST, f"{case.title}: two replicas take {share:.2f} of the time of one; at most {MOST}"


@pytest.mark.task("3.7.9")
def test_one_shared_system_prompt_ends_on_both_replicas(s):
    """All requests find their prefix on the first replica, until its queue is longer than what that saves."""
    run = RoutedRun(s, ROUTED_CASES[2], s.ReplicaLoads(16))
    counts = [run.chosen.count(name) for name in run.replicas]
    assert min(counts) > 0.4 * len(run.chosen), f"requests on each replica: {counts}"
