"""Stages of a pipeline: two and three of them compute what the whole model does. They take turns in one thread."""

from dataclasses import replace

import numpy as np
import pytest

from support.close import assert_close
from support.packed import PackedServing
from tiny_llm_kit.course.fakes.lockstep import LockstepGroup, LockstepRunner
from tiny_llm_kit.course.grading.goldens import random_checkpoint, small_model
from tiny_llm_kit.engine.loading import load_checkpoint, load_network
from tiny_llm_kit.engine.parallel.stage_part import StagePart
from tiny_llm_kit.model.checkpoint import Checkpoint
from tiny_llm_kit.repo import MODELS

SHIPPED = MODELS / "tiny-qwen3"
QWEN = small_model(
    41, num_hidden_layers=5, num_attention_heads=4, num_key_value_heads=2, head_dim=6, vocab_size=61,
    max_position_embeddings=400,
)  # fmt: skip
WINDOWS = {
    "sliding_window": 3,
    "layer_types": ("full_attention", "sliding_attention", "full_attention") + ("sliding_attention",) * 2,
}


def stages_of(b, s, size, case):
    """The models of all stages, each with its own weights alone; rank 0 is the last stage."""
    group = LockstepGroup(size, b.backend_module)
    whole, models = random_checkpoint(b, case), []
    for rank in group.ranks:
        part = StagePart(s, rank.rank, size)
        own = {name: array for name, array in whole.weights.items() if part.holds(name, case.config)}
        models.append(b.PipelineStage(Checkpoint(case.config, own), group=rank))
    return group, models


@pytest.mark.parametrize(
    "change", [{}, {"tie_word_embeddings": False}, WINDOWS], ids=["tied", "untied", "windows"]
)
@pytest.mark.parametrize("size", [2, 3])
def test_stages_compute_the_logits_of_the_whole_model(b, s, rng, size, change):
    """Chunks, a prompt and decodes, in two steps. A layer keeps its window wherever it is computed."""
    case = replace(QWEN, config=replace(QWEN.config, **change))
    group, models = stages_of(b, s, size, case)
    one = PackedServing(b, s, b.Qwen3ModelWeek3(random_checkpoint(b, case)))
    many = PackedServing(b, s, models[0])
    many.runner = LockstepRunner(
        group, [many.runner, *(b.packed_runner(model, 40, 4) for model in models[1:])]
    )
    prompts = [rng.integers(0, 61, size=length).tolist() for length in (14, 5, 9, 6)]
    for server in (one, many):
        made = [server.sequence(text, i) for i, text in enumerate(prompts)]
        server.run([(made[0], 0, 9), (made[2], 0, 8), (made[3], 0, 5)])
        server.run([(made[0], 9, 5), (made[1], 0, 5), (made[2], 8, 1), (made[3], 5, 1)])
    for request, rows in one.logits.items():
        for position, row in rows.items():
            assert_close(
                many.logits[request][position], row, atol=1e-4, idea=f"request {request} at {position}"
            )


def test_a_stage_has_pools_for_its_own_layers(b, s):
    _, models = stages_of(b, s, 3, QWEN)
    assert [len(model.create_kv_pools(2, 4)) for model in models] == [1, 2, 2], "the last stage is rank 0"


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
        load_network(b, SHIPPED, "week3", group=group.ranks[1], stages=True)


def test_a_stage_between_two_others_has_no_table(b, s):
    _, models = stages_of(b, s, 3, QWEN)
    last, first, middle = models
    assert first.embedding is not None and last.embedding is not None and middle.embedding is None
    assert np.array_equal(b.numpy(last.embedding.weight), b.numpy(first.embedding.weight))
