"""Week 3 Day 7: many devices, the side of the arrays. All ranks take turns in one thread; every call is recorded.

Oracles: NumPy; the logits of the whole model on one rank.
"""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from support.close import assert_close
from support.lockstep import LockstepGroup
from support.masks import assert_traces
from support.packed import PackedServing
from support.ranks import logits_of_two_steps, on_all_ranks, served_by, shards_of, stages_of
from tiny_llm_course.grading.small_models import random_checkpoint, small_model

QWEN = small_model(
    37,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=6,
    intermediate_size=32,
    vocab_size=61,
    max_position_embeddings=400,
)
DEEP = small_model(
    41,
    num_hidden_layers=5,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=6,
    vocab_size=61,
    max_position_embeddings=400,
)
WINDOWS = {"sliding_window": 3, "layer_types": ("full_attention", "sliding_attention")}
DEEP_WINDOWS = {
    "sliding_window": 3,
    "layer_types": ("full_attention", "sliding_attention", "full_attention") + ("sliding_attention",) * 2,
}


def same_on_all(found, idea):
    """The result of the first rank; all others have the same."""
    for rank, each in enumerate(found):
        assert each.shape == found[0].shape, f"rank {rank} has {each.shape}, rank 0 {found[0].shape}: {idea}"
        assert np.array_equal(each, found[0]), f"rank {rank} has other numbers than rank 0: {idea}"
    return found[0]


# One sum.


@pytest.mark.task("3.7.3")
@pytest.mark.parametrize(("size", "shape"), [(1, (5,)), (2, (3, 5)), (3, (1, 7, 5))])
def test_sum_over_ranks_adds_the_parts(b, rng, size, shape):
    """The same on every rank, by one all-reduce of the shape of the output."""
    parts = rng.standard_normal((size, *shape)).astype(np.float32)
    found, calls = on_all_ranks(b, size, lambda group: b.sum_over_ranks(b.array(parts[group.rank]), group))
    assert_close(same_on_all(found, "an all-reduce"), parts.sum(0), idea="the sum of all parts")
    assert [call.split()[0] for call in calls] == ["all_reduce"], f"one all-reduce and no more: {calls}"
    assert str(list(shape)) in calls[0], f"of {list(shape)}: {calls[0]}"


@pytest.mark.task("3.7.3")
@pytest.mark.parametrize("size", [2, 4])
def test_sum_over_ranks_adds_the_bias_once(b, rng, size):
    parts = rng.standard_normal((size, 3, 5)).astype(np.float32)
    bias, sent = rng.standard_normal(5).astype(np.float32), {}

    def summed(group):
        reduce = group.all_reduce
        group.all_reduce = lambda part: reduce(sent.setdefault(group.rank, part))
        return b.sum_over_ranks(b.array(parts[group.rank]), group, b.array(bias))

    found, calls = on_all_ranks(b, size, summed)
    expected = parts.sum(0) + bias
    assert_close(
        same_on_all(found, "every rank adds the bias"), expected, idea=f"one bias, not {size} of them"
    )
    assert len(calls) == 1, f"the bias needs no call of its own: {calls}"
    for rank, part in sent.items():
        assert_close(
            b.numpy(part),
            parts[rank],
            idea="a part has no share of the bias, which loses digits in a division",
        )


@pytest.mark.task("3.7.3")
def test_sum_over_ranks_keeps_the_type(b):
    """The next layer multiplies it by weights of this type, and in float32 twice as many bytes would be sent."""
    part = b.array(np.ones((3, 4), np.float32), "bfloat16")
    group = LockstepGroup(2, b.backend_module)
    for found in group.run([lambda rank=rank: b.sum_over_ranks(part, rank) for rank in group.ranks]):
        assert found.dtype == b.dtype("bfloat16"), f"parts in bfloat16 give {found.dtype}"
    assert "bfloat16" in group.calls[0], f"parts in bfloat16 were sent as {group.calls[0]}"


@pytest.mark.task("3.7.3")
def test_sum_over_ranks_keeps_the_bias(b):
    """A layer's bias is used in every step: nothing may be written into it."""
    bias, parts = b.array(np.ones(3, np.float32)), np.ones((2, 4, 3), np.float32)
    on_all_ranks(b, 2, lambda group: b.sum_over_ranks(b.array(parts[group.rank]), group, bias))
    assert b.numpy(bias).tolist() == [1, 1, 1], "the sum was added to the bias in place"


# The embedding.


def looked_up(b, table, ids, size):
    """What each rank gets for these ids, and the calls."""
    vocab_size = len(table)

    def lookup(group):
        own = b.serving.vocabulary_of(vocab_size, group.rank, group.size)
        rows = b.array(np.ascontiguousarray(table[own.start : own.stop]))
        rows = b.Embedding(*rows.shape, rows)
        return b.VocabParallelEmbedding(rows, own, group)(b.array(ids))

    return on_all_ranks(b, size, lookup)


@pytest.mark.task("3.7.4")
@pytest.mark.parametrize("size", [1, 2, 4])
def test_embedding_of_every_id(b, rng, size):
    """61 ids: with 4 ranks the last one has 13 rows, the others 16. No id is found twice, and none is missing."""
    table = rng.standard_normal((61, 5)).astype(np.float32)
    found, _ = looked_up(b, table, np.arange(61), size)
    idea = "ids of another rank must add zeros, whether they are below this rank's or above"
    assert_close(same_on_all(found, "a sum over the ranks"), table, atol=0, idea=idea)


@pytest.mark.task("3.7.4")
@pytest.mark.parametrize("shape", [(), (1,), (4,), (1, 7), (2, 3, 2)])
def test_embedding_of_ids_of_any_shape(b, rng, shape):
    """(...) ids give (..., E), by one all-reduce."""
    table, ids = rng.standard_normal((61, 5)).astype(np.float32), rng.integers(0, 61, size=shape)
    found, calls = looked_up(b, table, ids, 3)
    assert_close(same_on_all(found, "a sum"), table[ids], atol=0, idea=f"ids {shape} give {(*shape, 5)}")
    assert [call.split()[0] for call in calls] == ["all_reduce"], f"one all-reduce and no more: {calls}"
    assert str([*shape, 5]) in calls[0], f"of {[*shape, 5]}: {calls[0]}"


@pytest.mark.task("3.7.4")
def test_embedding_when_no_id_is_here(b, rng):
    """All ids of a step may be on one rank; the others still take part in the sum."""
    table = rng.standard_normal((60, 5)).astype(np.float32)
    ids = np.array([[59, 31, 30, 59]])
    found, _ = looked_up(b, table, ids, 2)
    assert_close(
        same_on_all(found, "a sum"),
        table[ids],
        atol=0,
        idea="ids of another rank give zeros, and those of this rank, first and last included, its rows",
    )


@pytest.mark.task("3.7.4")
def test_embedding_keeps_the_type_of_its_table(b, rng):
    """What is summed has this type: twice as many bytes would be sent in float32."""
    table, ids = b.array(rng.integers(-8, 8, size=(20, 4)), "bfloat16"), b.array(np.array([3, 25, 19]))
    group = SimpleNamespace(rank=0, size=2, all_reduce=lambda x: x)
    found = b.VocabParallelEmbedding(b.Embedding(20, 4, table), range(20), group)(ids)
    assert found.dtype == b.dtype("bfloat16"), f"a table in bfloat16 gives {found.dtype}"


@pytest.mark.task("3.7.4")
def test_embedding_asks_its_table_for_rows(b, rng):
    """A quantised table has no rows that could be indexed: it makes them when it is called."""
    table, ids = rng.standard_normal((20, 5)).astype(np.float32), b.array(np.array([3, 25, 19]))
    group = SimpleNamespace(rank=0, size=2, all_reduce=lambda x: x)

    class Table:
        weight = b.array(np.zeros((20, 5), np.float32))  # words, which are no rows

        def __call__(self, ids):
            return b.Embedding(20, 5, b.array(table))(ids)

    found = b.VocabParallelEmbedding(Table(), range(20), group)(ids)
    expected = np.stack([table[3], np.zeros(5, np.float32), table[19]])
    assert_close(b.numpy(found), expected, atol=0, idea="the table itself looks up its rows")


@pytest.mark.task("3.7.4")
def test_embedding_reads_no_ids(b, rng):
    """Ids are on the device: Python may not look at them, nor choose some of them by their values."""
    table = rng.standard_normal((30, 5)).astype(np.float32)
    group = SimpleNamespace(rank=1, size=2, all_reduce=lambda x: x)

    def lookup(table, ids):
        return b.VocabParallelEmbedding(b.Embedding(30, 5, table), range(30, 60), group)(ids)

    ids = b.array(np.array([[3, 31, 59]]))
    assert_traces(b, lookup, b.array(table), ids, idea="the lookup reads the ids, and waits for them")


# The logits.


def gathered(b, logits, size):
    """What each rank makes of its part of the logits (..., V), and the calls."""
    vocab_size = logits.shape[-1]

    def gather(group):
        own = b.serving.vocabulary_of(vocab_size, group.rank, group.size)
        part = np.ascontiguousarray(logits[..., own.start : own.stop])
        return b.gather_logits(b.array(part), vocab_size, group)

    return on_all_ranks(b, size, gather)


@pytest.mark.task("3.7.5")
@pytest.mark.parametrize(("vocab_size", "size"), [(60, 1), (60, 2), (61, 2), (61, 4), (5, 4), (9, 4)])
@pytest.mark.parametrize("shape", [(1,), (3,), (2, 3), ()])
def test_logits_are_those_of_one_process(b, rng, vocab_size, size, shape):
    """In the order of the ids, in the row that they belong to, and without padding; the last ranks may have fewer."""
    logits = rng.standard_normal((*shape, vocab_size)).astype(np.float32)
    found, calls = gathered(b, logits, size)
    idea = f"{vocab_size} ids on {size} ranks: parts of one row end to end, in order, cut to {vocab_size}"
    assert_close(same_on_all(found, "an all-gather"), logits, atol=0, idea=idea)
    share = -(-vocab_size // size)
    assert [call.split()[0] for call in calls] == ["all_gather"], f"one all-gather and no more: {calls}"
    assert str([*shape, share]) in calls[0], f"every rank gives {[*shape, share]}: {calls[0]}"


@pytest.mark.task("3.7.5")
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_logits_keep_their_type(b, rng, dtype):
    logits = rng.integers(-8, 8, size=(2, 7)).astype(np.float32)

    def gather(group):
        own = b.serving.vocabulary_of(7, group.rank, group.size)
        part = b.array(np.ascontiguousarray(logits[:, own.start : own.stop]), dtype)
        return b.gather_logits(part, 7, group)

    found, calls = on_all_ranks(b, 2, gather)
    assert dtype in calls[0], f"logits in {dtype} are gathered as {calls[0]}"
    assert_close(found[0], logits, atol=0, idea=f"logits in {dtype}")


# The whole model in parts.


@pytest.mark.task("3.7.5")
@pytest.mark.parametrize(
    ("size", "change"),
    [
        (2, {}),
        (4, {}),  # more ranks than heads of keys and values
        (2, {"tie_word_embeddings": False}),
        (4, {"tie_word_embeddings": False, "vocab_size": 57}),  # the last rank has 12 ids, the others 15
        (2, {"attention_bias": True}),  # a bias after the sum
        (2, WINDOWS),
    ],
    ids=["2", "4", "untied", "57 ids on 4", "biases", "windows"],
)
def test_ranks_compute_the_logits_of_one_process(b, s, rng, size, change):
    """Chunks, a whole prompt and decodes, in two steps."""
    case = replace(QWEN, config=replace(QWEN.config, **change))
    prompts = [rng.integers(0, 57, size=length).tolist() for length in (14, 5, 9, 6)]
    one = PackedServing(b, s, b.Qwen3ModelWeek3(random_checkpoint(b, case)))
    expected = logits_of_two_steps(one, prompts)
    found = logits_of_two_steps(served_by(b, s, shards_of(b, s, size, case)), prompts)
    for (request, at), row in expected.items():
        assert_close(found[request, at], row, atol=1e-4, idea=f"logits of request {request} at {at}")


@pytest.mark.task("3.7.5")
def test_a_layer_has_two_sums_and_a_step_one_more_and_a_gather(b, s, rng):
    """Two for each layer, one for the embedding, and the logits at the end: nothing else is exchanged."""
    ranks = shards_of(b, s, 2, QWEN)
    server = served_by(b, s, ranks)
    server.run([(server.sequence(rng.integers(0, 61, size=5).tolist()), 0, 5)])
    calls = ranks[0].calls
    assert [call.split()[0] for call in calls] == ["all_reduce"] * 5 + ["all_gather"], calls
    assert all("[1, 5, 20]" in call for call in calls[:5]), calls


# Stages.


@pytest.mark.task("3.7.7")
@pytest.mark.parametrize(
    "change", [{}, {"tie_word_embeddings": False}, DEEP_WINDOWS], ids=["tied", "untied", "windows"]
)
@pytest.mark.parametrize("size", [1, 2, 3])
def test_stages_compute_the_logits_of_the_whole_model(b, s, rng, size, change):
    """Chunks, a prompt and decodes, in two steps. A layer keeps its window wherever it is computed."""
    case = replace(DEEP, config=replace(DEEP.config, **change))
    prompts = [rng.integers(0, 61, size=length).tolist() for length in (14, 5, 9, 6)]
    one = PackedServing(b, s, b.Qwen3ModelWeek3(random_checkpoint(b, case)))
    expected = logits_of_two_steps(one, prompts)
    group, models = stages_of(b, s, size, case)
    found = logits_of_two_steps(served_by(b, s, (group, models)), prompts)
    for (request, at), row in expected.items():
        assert_close(found[request, at], row, atol=1e-4, idea=f"logits of request {request} at {at}")
    assert not any(group.mailboxes.values()), "a stage has sent what no other one received"
    assert not group.calls, f"stages send to each other, and need no collective call: {group.calls}"


class Recorded:
    """A model that remembers the shape of what each call has returned."""

    def __init__(self, model):
        self.model, self.shapes = model, []

    def __call__(self, inputs, pools):
        found = self.model(inputs, pools)
        self.shapes.append(None if found is None else tuple(found.shape))
        return found

    def __getattr__(self, name):
        return getattr(self.model, name)


@pytest.mark.task("3.7.7")
def test_only_the_last_stage_has_logits(b, s, rng):
    """The others return None, and the last one as well when no row is sampled. Rank 0 is the last stage."""
    group, models = stages_of(b, s, 3, DEEP)
    models = [Recorded(model) for model in models]
    server = served_by(b, s, (group, models))
    made = server.sequence(rng.integers(0, 61, size=9).tolist())
    server.run([(made, 0, 4)])  # the middle of a prompt
    server.run([(made, 4, 5)])
    found = [model.shapes for model in models]
    assert found == [[None, (1, 61)], [None, None], [None, None]], f"ranks 0, 1 and 2 returned {found}"


@pytest.mark.task("3.7.7")
def test_the_head_computes_sampled_rows_alone(b, s, rng):
    """The head is the largest product of a small model: of a chunk of five rows it needs the last one."""
    group, models = stages_of(b, s, 2, DEEP)
    server, head, rows = served_by(b, s, (group, models)), models[0].head, []
    models[0].head = lambda x: rows.append(x.shape[1]) or head(x)
    server.run([(server.sequence(rng.integers(0, 61, size=5).tolist()), 0, 5)])
    assert rows == [1], f"one row of five is sampled, and the head computed {rows}"
