"""All layers of a step in one call on MLX: nearly the numbers of its layers, whose operations are MLX's."""

from functools import partial

import mlx.core as mx
import numpy as np
import pytest

from support.close import assert_close
from tests_refsol.engine import native_cases
from tests_refsol.engine.native_cases import FAMILIES, KINDS, native_model, steps
from tiny_llm_engine.arrays.mlx.kv_pools import TinyKvPagedPool
from tiny_llm_engine.solutions.port import Port
from tiny_llm_extensions.cold_blocks.mlx.host_pages import HostPages
from tiny_llm_extensions.kernels.mlx.native import native_array
from tiny_llm_extensions.kernels.mlx.native_step import _addresses_of

pytestmark = [pytest.mark.tool("c++"), pytest.mark.port("mlx")]
CLOSE = {"float32": 1e-3, "bfloat16": 0.1}  # of logits, and of keys and values up to 5


def port_of(dtype):
    return Port("tiny_llm_ref", "mlx", "cpu", dtype)


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
        else:
            assert_close(actual, expected, atol=atol, rtol=0, idea=kept)


@pytest.mark.parametrize("dtype", CLOSE)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kinds", ["plain", "mixed", "apart"])
def test_a_step_is_that_of_its_layers(dtype, family, kinds):
    port = port_of(dtype)
    assert_near(port, native_model(port, KINDS[kinds], "int16", **FAMILIES[family]), 3)


@pytest.mark.parametrize("rows", [1, 7])
def test_pages_in_int8_are_written_in_place(rows):
    port = port_of("float32")
    assert_near(port, native_model(port, KINDS["4"], "int16"), rows, "int8")


@pytest.mark.parametrize("by_host", [False, True])
def test_the_call_finds_pages_that_a_write_has_moved(by_host):
    """MLX writes into another array where the one so far is held elsewhere."""
    pool = TinyKvPagedPool(2, 4, 1, 32, mx.float32)
    before, held = _addresses_of(pool), [mx.view(part, mx.float32) for part in pool.arrays]
    mx.eval(held)
    if by_host:
        HostPages([pool], 1).restore(0, 1)
    else:
        pool.write(mx.array([3]), *(mx.ones((1, 1, 32)) for _ in range(2)))
    found = [native_array(part).address for part in pool.arrays]
    assert _addresses_of(pool) == found and not {*before} & {*found}


def test_other_layers_keep_their_path():
    """Here for heads of 16 numbers."""
    port = port_of("float32")
    assert "compute" in vars(native_model(port))
    assert "compute" not in vars(native_model(port, head_dim=16))


@pytest.mark.parametrize("name", native_cases.KERNELS)
def test_a_blank_kernel_leaves_the_layers_as_they_are(monkeypatch, name):
    port = port_of("float32")
    native_cases.assert_blank_kernel_has_no_step(port, partial(native_model, port), monkeypatch, name)


def test_a_model_keeps_no_pool():
    port = port_of("float32")
    native_cases.assert_model_keeps_no_pool(port, native_model(port))
