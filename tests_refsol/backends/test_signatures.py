"""What a compiler for fixed shapes would see of the torch port's decode, written down on a CPU (`record`)."""

from functools import partial

import pytest
import torch

from tiny_llm_course.grading.small_models import random_checkpoint, random_weights, small_model
from tiny_llm_course.recorded_operations import record
from tiny_llm_course.see.week_2_day_1 import PROMPT, ConcatenatingCache, signatures
from tiny_llm_engine.models.checkpoint import Checkpoint

CASE = small_model(5, vocab_size=53, tie_word_embeddings=False, max_position_embeddings=512)
LAYERS = CASE.config.num_hidden_layers


@pytest.fixture(scope="module")
def model(port):
    return port.Qwen3ModelWeek2(random_checkpoint(port, CASE))


@pytest.mark.parametrize(("tokens", "programs"), [(256 - PROMPT, 1), (257 - PROMPT, 2)])
def test_by_index_all_positions_of_a_bucket_are_one_program(port, model, tokens, programs):
    assert signatures(port, model, model.create_kv_cache(PROMPT + tokens), tokens) == (programs, 0)


def test_by_concatenation_every_length_is_another_program(port, model):
    caches = [ConcatenatingCache(port) for _ in range(LAYERS)]
    assert signatures(port, model, caches, 40) == (40, 0)


def test_the_concatenating_cache_is_right_and_only_slow(port, model):
    ids = port.array([[3, 1, 4, 1, 5, 9, 2]])
    outputs = []
    concatenating = [ConcatenatingCache(port) for _ in range(LAYERS)]
    for caches in (concatenating, model.create_kv_cache(7)):
        parts = [(0, 4), (4, 5), (5, 7)]
        outputs.append(torch.cat([model(ids[:, a:z], a, caches) for a, z in parts], dim=1))
    torch.testing.assert_close(*outputs, atol=1e-5, rtol=0)


def test_an_offset_of_python_is_part_of_the_program(port, model):
    """That is why the model takes positions in an array."""
    caches, token = model.create_kv_cache(20), port.array([[1]])
    model(port.array([[1, 2, 3]]), 0, caches)
    seen = {record(partial(model, token, n, caches)).signature for n in range(3, 13)}
    assert len(seen) == 10


def test_a_rewind_needs_no_other_program(port, model):
    caches, token = model.create_kv_cache(40), port.array([[1]])
    model(port.array([[1, 2, 3]]), 0, caches)
    seen = set()
    for position in (3, 4, 5, 3, 4):
        if caches[0].offset > position:
            for cache in caches:
                cache.rewind(cache.offset - position)
        seen.add(record(partial(model, token, port.array([position]), caches)).signature)
    assert len(seen) == 1


def test_prompts_in_pieces_of_one_length_are_one_program(port, model):
    caches = model.create_kv_cache(200)
    model(port.array([range(8)]), port.array(range(8)), caches)
    pieces = [port.array(range(start, start + 8)) for start in range(8, 200, 8)]
    assert len({record(partial(model, piece[None] % 50, piece, caches)).signature for piece in pieces}) == 1


def test_a_step_needs_no_number_from_the_device(port):
    """On `meta` there are no numbers: whatever reads one, by any road, raises.

    A recorder does not see `.cpu()`, nor `.tolist()`.
    """
    weights = {name: torch.tensor(w, device="meta") for name, w in random_weights(CASE).items()}
    model = port.Qwen3ModelWeek2(Checkpoint(CASE.config, weights))
    caches = model.create_kv_cache(20)
    for positions in (torch.arange(5), torch.tensor([5]), torch.tensor([6])):
        ids = torch.zeros((1, len(positions)), dtype=torch.long, device="meta")
        logits = model(ids, positions.to("meta"), caches, logits_to_keep=1)
        assert (logits.device.type, logits.shape) == ("meta", (1, 1, 53))


A, SQUARE = torch.ones(2, 3), torch.ones(3, 3)


DIFFERENCES = {
    "shape": (lambda: A + A, lambda: A[:1] + A[:1]),
    "shape of a view": (lambda: A.T + 1, lambda: torch.ones(3, 2) + 1),
    "stride": (lambda: SQUARE.T.add(1), lambda: SQUARE.add(1)),
    "type": (lambda: A.add(1), lambda: A.double().add(1)),
    "number": (lambda: A * 2, lambda: A * 3),
    "1 and 1.0": (lambda: A * 2, lambda: A * 2.0),
    "flag": (lambda: A.sum(0, keepdim=True), lambda: A.sum(0, keepdim=False)),
    "place": (lambda: A[:, 0], lambda: A[:, 1]),
    "order": (lambda: (A.sin(), A.cos()), lambda: (A.cos(), A.sin())),
    "list": (lambda: torch.cat([A, A]), lambda: torch.cat([A, A, A])),
}


@pytest.mark.parametrize(("one", "other"), DIFFERENCES.values(), ids=DIFFERENCES)
def test_the_recorder_sees_a_difference(one, other):
    assert record(one).signature == record(one).signature
    assert record(one).signature != record(other).signature


def test_the_recorder_does_not_look_at_the_numbers_in_an_array():
    other = torch.zeros(2, 3)
    assert record(lambda: A + 1).signature == record(lambda: other + 1).signature


@pytest.mark.parametrize("read", [lambda: A[0, 0].item(), lambda: int(A[0, 0]), lambda: bool(A[0, 0] > 0)])
def test_the_recorder_sees_a_read_of_the_host(read):
    assert record(read).host_reads


def test_the_recorder_sees_no_read_where_there_is_none():
    assert record(lambda: torch.where(A > 0, A, 0.0) @ A.T).host_reads == ()
