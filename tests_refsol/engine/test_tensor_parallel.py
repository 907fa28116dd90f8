"""Tensor parallelism: engines of several ranks that take turns in one thread, and what each rank reads.

Day 3.7 tests the parts of the model. As real processes ranks are in `test_ranks.py`.
"""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.close import assert_close
from support.lockstep import LockstepError, LockstepGroup
from support.packed import PackedServing
from support.ranks import CHATS, SAMPLINGS, TIGHT, served_by, shards_of
from tiny_llm_course.grading.small_models import random_checkpoint, small_model
from tiny_llm_engine.loading import Loading, load_checkpoint
from tiny_llm_engine.machine.repo import MODELS
from tiny_llm_engine.models.quantization import WeightQuantizer
from tiny_llm_engine.models.weights.random_weights import shape
from tiny_llm_extensions.drafts.proposals import Proposals
from tiny_llm_extensions.llm import LLM
from tiny_llm_extensions.loading import random_network
from tiny_llm_extensions.make_loop import make_loop
from tiny_llm_extensions.parallel.division import RankDivision
from tiny_llm_extensions.parallel.rank_parts import RankPart
from tiny_llm_ref import serving

SHIPPED = MODELS / "tiny-qwen3"
SHAPE = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6, "intermediate_size": 32}
QWEN = small_model(37, **SHAPE, vocab_size=61, max_position_embeddings=400)


@pytest.mark.parametrize(("size", "buckets", "kept"), [(2, "linear", "auto"), (4, None, "int8")])
def test_an_engine_of_ranks_gives_the_answers_of_one(b, whole, two_layers, llm_of_ranks, size, buckets, kept):
    """Chunks of 16 tokens, shared prefixes, preemptions, seeds and log-probabilities."""
    options = TIGHT | {"bucketing_strategy": buckets, "kv_cache_dtype": kept}
    one, (many, _) = LLM.of(b, *whole, **options), llm_of_ranks(two_layers, size, {}, **options)
    for tokens in (6, 24):  # the second time with cached prefixes
        params = [replace(each, max_tokens=tokens) for each in SAMPLINGS]
        expected, found = (llm.chat(CHATS, params, use_tqdm=False) for llm in (one, many))
        assert [o.outputs[0].token_ids for o in found] == [o.outputs[0].token_ids for o in expected]
        # What differs in its last digit may be rounded to the next of 255 numbers.
        atol = 1e-4 if kept == "auto" else 5e-3
        assert_close(probabilities(found[0]), probabilities(expected[0]), atol=atol, idea="log-probabilities")
    assert sum(output.metrics.num_preemptions for output in found) > 0, "nothing was preempted"
    assert many.engine.allocator.num_free == many.engine.allocator.num_blocks


def test_ranks_check_drafts_together(b, rng):
    """Two ranks run every row of a step with drafts: the answers are those of one process without drafts."""
    texts = [rng.integers(0, 61, size=length).tolist() for length in (9, 5)]

    def answers(server, **options):
        loop = make_loop(serving, "hybrid", server.runner, server.allocator, **options)
        made = [server.new_sequence(text, number, max_tokens=12) for number, text in enumerate(texts)]
        for one in made:
            loop.add(one)
        while loop.has_work_remaining():
            loop.step()
        return [one.tokens for one in made]

    one = PackedServing(b, serving, b.Qwen3ModelWeek3(random_checkpoint(b, QWEN)))
    expected = answers(one)
    guess = lambda one, k: [*expected[one.request_id][len(one.tokens) :][:2], 0][:k]  # noqa: E731
    proposer = SimpleNamespace(draft_seconds=0.0, propose=lambda wanted: [guess(*each) for each in wanted])
    drafts = Proposals(serving.choose_k, proposer, 3)
    assert answers(served_by(b, serving, shards_of(b, serving, 2, QWEN)), drafts=drafts) == expected
    assert 0 < drafts.counts.accepted_tokens < drafts.counts.draft_tokens


def probabilities(output):
    return np.array([sorted(entry.logprob for entry in each.values()) for each in output.outputs[0].logprobs])


def test_ranks_that_make_different_calls_are_named(b):
    group = LockstepGroup(2, b.backend_module)
    x = b.array(np.ones((2, 3), np.float32))
    first, second = group.ranks
    with pytest.raises(LockstepError, match=r"rank 0 waits in all_reduce .*; rank 1 waits in all_gather"):
        group.run([lambda: first.all_reduce(x), lambda: second.all_gather(x)])
    with pytest.raises(LockstepError, match=r"rank 0 waits in all_reduce .*; rank 1 has ended"):
        group.run([lambda: first.all_reduce(x), lambda: 1])
    with pytest.raises(LockstepError, match="rank 0 waits in receive from rank 1; rank 1 has ended"):
        group.run([lambda: first.receive((2, 3), x, 1), lambda: 1])


# Which part a rank holds.


@given(st.integers(1, 300), st.integers(1, 16))
def test_the_vocabulary_is_covered_once(vocab_size, size):
    parts = [serving.vocabulary_of(vocab_size, rank, size) for rank in range(size)]
    assert [token for part in parts for token in part] == list(range(vocab_size))
    assert max(map(len, parts)) == -(-vocab_size // size)


NUMBERS = [(4, 2, 32, 3, "1, 2 or 4"), (6, 4, 32, 3, "1 or 2"), (8, 8, 36, 8, "1, 2 or 4")]


@pytest.mark.parametrize(
    ("heads", "kv_heads", "hidden", "size", "choices"), [*NUMBERS, (3, 1, 7, 3, "choose 1$")]
)
def test_a_model_that_cannot_be_divided_names_the_numbers_that_can(heads, kv_heads, hidden, size, choices):
    config = SimpleNamespace(
        num_attention_heads=heads, num_key_value_heads=kv_heads, intermediate_size=hidden
    )
    with pytest.raises(ValueError, match=rf"tensor_parallel_size is {size}: .*{choices}"):
        serving.check_tensor_parallel(config, size)


# What a rank reads.


@pytest.mark.parametrize("size", [2, 4])
def test_each_rank_reads_only_its_part_of_the_files(b, s, size):
    """Matrices once between all ranks, norms on each; with 4 ranks the two heads of keys and values twice."""
    total = norms = kv = 0
    for name, array in load_checkpoint(SHIPPED, b.name, "cpu", "bfloat16").weights.items():
        total += array.nbytes
        norms += array.nbytes if array.ndim == 1 else 0
        kv += array.nbytes if "k_proj" in name or "v_proj" in name else 0
    parts = [RankPart(s, rank, size) for rank in range(size)]
    read = [load_checkpoint(SHIPPED, b.name, "cpu", "bfloat16", part=part).bytes_read for part in parts]
    assert sum(read) == total + (size - 1) * norms + (size // 2 - 1) * kv
    assert max(read) <= total / size + norms + kv


def test_one_process_reads_every_byte_once(b):
    checkpoint = load_checkpoint(SHIPPED, b.name, "cpu", "bfloat16")
    assert checkpoint.bytes_read == sum(array.nbytes for array in checkpoint.weights.values())


@pytest.mark.parametrize("bits", [4, 8])
def test_quantised_parts_are_parts_of_the_quantised_matrix(b, s, rng, bits):
    """Rows, and columns along groups: products of the ranks add up to those of the whole matrix."""

    def weights(part=None):
        return load_checkpoint(SHIPPED, b.name, "cpu", "float32", WeightQuantizer(b, bits), part).weights

    whole, parts = weights(), [weights(RankPart(s, rank, 2)) for rank in range(2)]
    layer = "model.layers.1."
    x = rng.standard_normal((3, 512)).astype(np.float32)
    for name, is_row_parallel in (("self_attn.q_proj", False), ("mlp.down_proj", True)):
        name = f"{layer}{name}.weight"
        O, I = whole[name].shape
        expected = b.numpy(b.quantized_linear(b.array(x[:, :I]), whole[name]))
        halves = [x[:, : I // 2], x[:, I // 2 : I]] if is_row_parallel else [x[:, :I]] * 2
        halves = [b.array(np.ascontiguousarray(half)) for half in halves]
        pairs = zip(halves, parts, strict=True)
        found = [b.numpy(b.quantized_linear(half, part[name])) for half, part in pairs]
        joined = sum(found) if is_row_parallel else np.concatenate(found, -1)
        assert joined.shape == (3, O)
        assert_close(joined, expected, atol=0.03, idea=name)


def test_groups_of_stored_words_are_not_cut(b, s):
    from tiny_llm_engine.models.config import Quantization
    from tiny_llm_extensions.parallel.parts_of_files import quantized_shards

    config = replace(QWEN.config, quantization=Quantization(group_size=64, bits=4))
    name = "model.layers.0.mlp.down_proj.weight"
    found = quantized_shards(name, (20, 16), config, RankPart(s, 1, 2))  # 128 columns
    assert found[name].columns == range(8, 16)
    assert found[name.replace("weight", "scales")].columns == range(1, 2)
    with pytest.raises(ValueError, match="groups of 64 columns, and a rank would get 32"):
        quantized_shards(name, (20, 8), config, RankPart(s, 1, 2))


def test_random_weights_have_the_shapes_of_a_rank(b, s):
    group = LockstepGroup(2, b.backend_module)
    network, _ = random_network(b, shape("tiny-qwen3", 1), Loading(division=RankDivision(group.ranks[1])))
    assert network.config.num_attention_heads == 2
    assert network.vocab_rows == 1760
