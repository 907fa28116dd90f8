"""What is given of the stages of a pipeline: who reads and holds what. Day 3.7 tests what they compute."""

import numpy as np
import pytest

from support.lockstep import LockstepGroup
from support.ranks import stages_of
from tiny_llm_course.grading.small_models import small_model
from tiny_llm_engine.loading import Loading, load_checkpoint
from tiny_llm_engine.machine.repo import MODELS
from tiny_llm_extensions.loading import load_network
from tiny_llm_extensions.parallel.division import RankDivision
from tiny_llm_extensions.parallel.rank_parts import StagePart

SHIPPED = MODELS / "tiny-qwen3"
SHAPE = {"num_hidden_layers": 5, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6}
QWEN = small_model(41, **SHAPE, vocab_size=61, max_position_embeddings=400)


def test_a_stage_has_pools_for_its_own_layers(b, s):
    _, models = stages_of(b, s, 3, QWEN)
    assert [len(b.create_kv_pools(model, 2, 4)) for model in models] == [1, 2, 2], "the last stage is rank 0"


def test_a_stage_reads_only_its_layers(b, s):
    """The embedding is on the first stage and, where it is the head as well, on the last."""
    whole = load_checkpoint(SHIPPED, b.name, "cpu", "bfloat16")
    parts = [
        load_checkpoint(SHIPPED, b.name, "cpu", "bfloat16", part=StagePart(s, rank, 2)) for rank in range(2)
    ]
    table = whole.weights["model.embed_tokens.weight"].nbytes
    norm = whole.weights["model.norm.weight"].nbytes
    assert sum(part.bytes_read for part in parts) == whole.bytes_read + table + norm
    layers = [{int(name.split(".")[2]) for name in part.weights if ".layers." in name} for part in parts]
    assert layers == [{2, 3}, {0, 1}]


def test_more_stages_than_layers_are_refused(b, s):
    group = LockstepGroup(5, b.backend_module)
    with pytest.raises(
        ValueError, match="pipeline_parallel_size is 5, and the model has 4 layers: give at most 4"
    ):
        load_network(b, SHIPPED, "week3", Loading(division=RankDivision(group.ranks[1], stages=True)))


def test_a_stage_between_two_others_has_no_table(b, s):
    _, models = stages_of(b, s, 3, QWEN)
    last, first, middle = models
    assert first.embedding is not None and last.embedding is not None and middle.embedding is None
    assert np.array_equal(b.numpy(last.embedding.weight), b.numpy(first.embedding.weight))
