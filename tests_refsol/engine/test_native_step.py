"""A step in one call, on both ports: nearly the numbers of its layers, whose operations are the port's."""

from functools import partial

import numpy as np
import pytest

from support.close import assert_close
from support.packed import PackedServing
from tests_refsol.engine import native_cases
from tests_refsol.engine.native_cases import FAMILIES, HEADS, KINDS, native_model, steps
from tiny_llm_engine.machine.repo import MODELS
from tiny_llm_engine.scheduled import Scheduled
from tiny_llm_engine.solutions.port import Port
from tiny_llm_engine.step_loop import put_prompt_rows_into
from tiny_llm_extensions.given import given_of
from tiny_llm_extensions.kernels.native import layer_fields
from tiny_llm_extensions.loading import load_network

pytestmark = pytest.mark.tool("c++")
CLOSE = {"float32": 1e-3, "bfloat16": 0.1}  # of logits, and of keys and values up to 5


@pytest.fixture(params=[pytest.param(name, marks=pytest.mark.port(name)) for name in ("torch", "mlx")])
def name(request):
    return request.param


@pytest.fixture(params=CLOSE)
def port(request, name, monkeypatch):
    return port_of(monkeypatch, name, request.param)


@pytest.fixture
def precise(name, monkeypatch):
    """A port in float32."""
    return port_of(monkeypatch, name, "float32")


def port_of(monkeypatch, name, dtype):
    if name == "torch":
        from tiny_llm_extensions.kernels.torch import products

        monkeypatch.setattr(products, "_has_ways", lambda w: True)  # plain matrices in float32, too
    return Port("tiny_llm_ref", name, "cpu", dtype)


def assert_near(port, model, rows, kept="auto"):
    """Each of the three steps is one call."""
    counted = native_cases.counted_calls(model)
    found = steps(port, model, rows, kept)
    assert len(counted) == 3
    del model.compute
    atol = CLOSE[port.float_dtype] if kept == "auto" else 0.2
    for actual, expected in zip(found, steps(port, model, rows, kept), strict=True):
        if kept == "int8" and actual.dtype == np.int8:
            assert np.abs(actual.astype(int) - expected).max() <= 1, "more than rounding to the next number"
        elif actual.dtype != np.uint8:  # of e4m3 the logits alone: its neighbours are far apart
            assert_close(actual, expected, atol=atol, rtol=0, idea=kept)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kinds", KINDS)
def test_a_step_is_that_of_its_layers(port, family, kinds):
    assert_near(port, native_model(port, KINDS[kinds], "int16", **FAMILIES[family]), 3)


@pytest.mark.parametrize("rows", [1, 9])
def test_a_mixture_is_that_of_its_layers(precise, rows):
    """A router, the experts of each row and their sum; the first layer is dense."""
    network, _ = load_network(precise, MODELS / "tiny-qwen3-moe", "week3")
    given_of(precise).use_products(network, "native")
    given_of(precise).use_native_layers(network)
    assert [layer_fields.is_mixture(layer.mlp) for layer in network.layers].count(True) == 2
    assert_near(precise, network, rows)


@pytest.mark.parametrize("kept", ["int8", "fp8_e4m3"])
@pytest.mark.parametrize("rows", [1, 7])
def test_pages_in_eight_bits_are_written_in_place(precise, rows, kept):
    assert_near(precise, native_model(precise, KINDS["4"], "int16"), rows, kept)


@pytest.mark.port("torch")
@pytest.mark.parametrize(("count", "rows"), [(1, 1), (1, 16), (2, 1), (2, 2), (2, 7), (3, 5), (5, 16)])
@pytest.mark.parametrize("kinds", ["plain", "mixed"])
def test_threads_share_any_number_of_rows(monkeypatch, count, rows, kinds):
    """Also when there are more threads than cores, or than pieces."""
    port = port_of(monkeypatch, "torch", "float32")
    model = native_model(port, KINDS[kinds], "int16")
    model.compute.arrays = model.compute.arrays._replace(threads=lambda: count)
    assert_near(port, model, rows)


@pytest.mark.parametrize("heads", [(1, 1), (4, 4), (16, 1), (5, 5)])
def test_heads_that_share_keys(precise, heads):
    sizes = dict(zip(HEADS, heads, strict=True))
    assert_near(precise, native_model(precise, KINDS["4"], "int16", **sizes, head_dim=64), 4)


def test_prompts_have_their_log_probabilities(precise):
    """Their rows reach the head beside those that are sampled."""
    port, model, found = precise, native_model(precise), []
    for _ in range(2):
        server = PackedServing(port, port.serving, model)
        sequence = server.sequence([3, 1, 4, 1, 5], prompt_logprobs=2)
        for entry in (Scheduled(sequence, 0, 3), Scheduled(sequence, 3, 2)):
            batch = port.serving.pack([entry])
            put_prompt_rows_into(batch, [entry])
            server.runner.run(batch)
        found.append([each.logprob for each in sequence.prompt_sampled.values()])
        vars(model).pop("compute", None)
    assert len(found[0]) == 4
    assert_close(np.array(found[0]), np.array(found[1]), atol=1e-3, idea="layer by layer")


@pytest.mark.parametrize("kernel", native_cases.KERNELS)
def test_a_blank_kernel_leaves_the_model_as_it_is(precise, monkeypatch, kernel):
    native_cases.assert_blank_kernel_has_no_step(precise, partial(native_model, precise), monkeypatch, kernel)


def test_other_layers_keep_their_path(precise, monkeypatch):
    """Heads of 16 numbers; norms of another type than the plain matrices; and a part of a model."""
    assert "compute" in vars(native_model(precise))
    assert "compute" not in vars(native_model(precise, head_dim=16))
    model = native_model(precise)
    model.norm.weight = precise.array(np.ones(192), "bfloat16")
    assert not layer_fields.can_compute(model)
    model = native_model(precise)
    model.is_last = False
    assert not layer_fields.can_compute(model)


def test_a_model_keeps_no_pool(precise):
    native_cases.assert_model_keeps_no_pool(precise, native_model(precise))


@pytest.mark.port("torch")
def test_small_matrices_are_in_one_array(monkeypatch):
    model = native_model(port_of(monkeypatch, "torch", "bfloat16"), KINDS["4"])
    matrices = [getattr(layer, name) for layer in model.layers for name in ("wq", "wk", "wv", "wo")]
    parts = [part for matrix in matrices for part in (matrix.lines, matrix.constants)]
    assert len({part.untyped_storage().data_ptr() for part in parts}) == 1
    assert all(part.data_ptr() % 64 == 0 for part in parts)


@pytest.mark.port("mlx")
@pytest.mark.parametrize("by_host", [False, True])
def test_the_call_finds_pages_that_a_write_has_moved(by_host):
    """MLX writes into another array where the one so far is held elsewhere."""
    import mlx.core as mx

    from tiny_llm_engine.arrays.mlx.kv_pools import TinyKvPagedPool
    from tiny_llm_extensions.cold_blocks.mlx.host_pages import HostPages
    from tiny_llm_extensions.kernels.mlx.native import addresses_of, native_array

    pool = TinyKvPagedPool(2, 4, 1, 32, mx.float32)
    before, held = addresses_of(pool), [mx.view(part, mx.float32) for part in pool.arrays]
    mx.eval(held)
    if by_host:
        HostPages([pool], 1).restore(0, 1)
    else:
        pool.write(mx.array([3]), *(mx.ones((1, 1, 32)) for _ in range(2)))
    found = [native_array(part).address for part in pool.arrays]
    assert addresses_of(pool) == found and not {*before} & {*found}
