"""All layers of a step in one call: the same numbers as layer by layer, and when there is no such call."""

from functools import partial
from weakref import ref

import numpy as np
import pytest
import torch

from support.packed import PackedServing
from tests_refsol.engine import native_cases
from tests_refsol.engine.native_cases import FAMILIES, HEADS, KINDS, steps
from tiny_llm_engine.scheduled import Scheduled
from tiny_llm_engine.solutions.port import Port
from tiny_llm_engine.step_loop import put_prompt_rows_into
from tiny_llm_extensions.given import given_of
from tiny_llm_extensions.kernels.torch import large_pages, native_step, products

pytestmark = [pytest.mark.tool("c++"), pytest.mark.port("torch")]


@pytest.fixture(params=["bfloat16", "float32"])
def port(request):
    return Port("tiny_llm_ref", "torch", "cpu", request.param)


@pytest.fixture(autouse=True)
def threads():
    """Sets the number of threads, for one test."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.fixture
def native_model(port, monkeypatch):
    """Makes a model of native layers."""
    monkeypatch.setattr(products, "_has_ways", lambda w: True)  # plain matrices in float32, too
    return partial(native_cases.native_model, port)


def assert_same(port, model, rows, kept="auto", calls=3):
    """The logits and the pages, to the last bit; each step is one call."""
    counted = native_cases.counted_calls(model)
    found = steps(port, model, rows, kept)
    assert len(counted) == calls
    del model.compute
    for actual, expected in zip(found, steps(port, model, rows, kept), strict=True):
        np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kinds", KINDS)
def test_a_step_is_that_of_its_layers(port, native_model, family, kinds):
    assert_same(port, native_model(KINDS[kinds], **FAMILIES[family]), 3)


@pytest.mark.parametrize("kept", ["int8", "fp8_e4m3"])
@pytest.mark.parametrize("family", ["qwen3", "windowed"])
def test_pages_in_eight_bits_are_those_of_the_layers(port, native_model, family, kept):
    assert_same(port, native_model(KINDS["4"], **FAMILIES[family]), 3, kept)


@pytest.mark.parametrize(("count", "rows"), [(1, 1), (1, 16), (2, 1), (2, 2), (2, 7), (3, 5), (5, 16)])
@pytest.mark.parametrize("kinds", ["plain", "mixed"])
def test_threads_share_any_number_of_rows(port, native_model, threads, count, rows, kinds):
    """Also when there are more threads than cores, or than pieces."""
    threads(count)
    assert_same(port, native_model(KINDS[kinds], "int16"), rows)


@pytest.mark.parametrize("heads", [(1, 1), (4, 4), (16, 1), (5, 5)])
def test_heads_that_share_keys(port, native_model, heads):
    sizes = dict(zip(HEADS, heads, strict=True))
    assert_same(port, native_model(KINDS["4"], **sizes, head_dim=64), 4)


def test_where_chunks_have_another_kernel_their_steps_go_layer_by_layer(port, native_model):
    assert_same(port, native_model(chunk_kernel=False), 3, calls=1)


def test_prompts_have_their_log_probabilities(port, native_model):
    """Their rows reach the head beside those that are sampled."""
    model, found = native_model(), []
    for _ in range(2):
        server = PackedServing(port, port.serving, model)
        sequence = server.sequence([3, 1, 4, 1, 5], prompt_logprobs=2)
        for entry in (Scheduled(sequence, 0, 3), Scheduled(sequence, 3, 2)):
            batch = port.serving.pack([entry])
            put_prompt_rows_into(batch, [entry])
            server.runner.run(batch)
        found.append([each.logprob for each in sequence.prompt_sampled.values()])
        vars(model).pop("compute", None)
    assert len(found[0]) == 4 and found[0] == found[1]


@pytest.mark.parametrize("name", native_cases.KERNELS)
def test_a_blank_kernel_leaves_the_layers_as_they_are(port, native_model, monkeypatch, name):
    native_cases.assert_blank_kernel_has_no_step(port, native_model, monkeypatch, name)


def test_other_layers_keep_their_path(port, native_model, monkeypatch):
    """A layer that is no native one, here for its heads of 16 numbers; and numbers of another type than the model's."""
    assert "compute" not in vars(native_model(head_dim=16))
    assert isinstance(native_model().compute, native_step.NativeStep)
    monkeypatch.setattr(native_step, "NAMES", dict.fromkeys(native_step.NAMES, "float64"))
    assert "compute" not in vars(native_model())


def test_a_model_keeps_no_pool(port, native_model):
    native_cases.assert_model_keeps_no_pool(port, native_model())


def test_the_last_norm_is_a_kernel_and_small_matrices_are_in_one_array(port, native_model):
    model = native_model(KINDS["4"])
    x = torch.randn(1, 3, model.norm.weight.shape[0]).to(model.norm.weight.dtype)
    expected = torch.rms_norm(x, model.norm.weight.shape, model.norm.weight, model.norm.eps)
    torch.testing.assert_close(model.norm(x), expected)
    matrices = [
        matrix for layer in model.layers for each in native_step._weights(layer) for matrix, _ in each
    ]
    parts = [part for matrix in matrices for part in (matrix.lines, matrix.constants)]
    assert len({part.untyped_storage().data_ptr() for part in parts}) == 1
    assert all(part.data_ptr() % 64 == 0 for part in parts)


def test_matrices_are_moved_one_by_one(port):
    """So that memory never holds two copies of them."""
    of = given_of(port).native_matrix
    weights = [Watched((of(torch.ones(16, 32)), None) for _ in range(3)) for _ in range(2)]
    watched = [ref(matrix.lines) for each in weights for matrix, _ in each]
    for each in weights:
        each.watched = watched
    large_pages.in_large_pages(weights)
    alive = [count for each in weights for count in each.alive]
    assert alive == [6, 5, 4, 3, 2, 1], "with the one that is moved"
    assert not any(array() is not None for array in watched)


class Watched(list):
    """Weights that note how many of the watched arrays are alive, at each replacement."""

    def __init__(self, weights):
        super().__init__(weights)
        self.alive = []

    def __setitem__(self, index, value):
        super().__setitem__(index, value)
        self.alive.append(sum(array() is not None for array in self.watched))
