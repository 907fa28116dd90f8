"""The kernels of Day 4.1 with MLX's arrays: lazy ones, parts of others, and matrices that are joined and cut."""

import importlib

import numpy as np
import pytest

from tiny_llm_engine.solutions.port import Port
from tiny_llm_extensions.given import given_of
from tiny_llm_extensions.kernels.native.kernel import SMALL, available_threads, threads_for

pytestmark = [pytest.mark.port("mlx"), pytest.mark.tool("c++")]


@pytest.fixture(scope="module")
def port():
    return Port("tiny_llm_ref", "mlx", "cpu")


@pytest.fixture(scope="module")
def native(port):
    return importlib.import_module("tiny_llm_extensions.kernels.mlx.native")


def plain(port, native, rng, O, I, dtype):
    """A matrix (O, I), and packed."""
    w = port.array(rng.normal(size=(O, I)), dtype)
    return port.numpy(w).astype(float), given_of(port).native_matrix(w)


def close(port, found, expected):
    np.testing.assert_allclose(port.numpy(found), expected, rtol=2**-7, atol=1e-3)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_an_array_need_not_be_computed_nor_contiguous(port, native, rng, dtype):
    """A lazy array, a transposed one, every second row, some columns, no rows."""
    w, packed = plain(port, native, rng, 37, 6, dtype)
    whole = port.array(rng.normal(size=(8, 12)), dtype)
    square = port.array(rng.normal(size=(6, 5)), dtype)
    for x in (whole[:, :6] + whole[:, 6:], square.T, whole[::2, :6], whole[None, :, 3:9], whole[:0, :6]):
        close(port, packed(x), port.numpy(x).astype(float) @ w.T)


def test_a_bias_in_bf16_is_added(port, native, rng):
    w, packed = plain(port, native, rng, 16, 6, "bfloat16")
    x, bias = (port.array(rng.normal(size=size), "bfloat16") for size in ((1, 2, 6), 16))
    close(port, packed(x, bias), port.numpy(x).astype(float) @ w.T + port.numpy(bias))


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_rows_are_those_of_the_matrix(port, native, rng, dtype):
    """An odd number of columns: the last pair of a bf16 row is half padding."""
    w, packed = plain(port, native, rng, 37, 7, dtype)
    ids = [[0, 36, 16], [15, 3, 3]]
    np.testing.assert_array_equal(port.numpy(packed.rows(port.array(ids))), w[ids])


def test_a_trace_is_refused(port, native, rng):
    """`mx.compile` knows shapes and no numbers; an answer from an empty array would be wrong in silence."""
    _, packed = plain(port, native, rng, 16, 6, "float32")
    with pytest.raises(RuntimeError, match="transformations like compile"):
        port.backend_module.trace(packed, port.array(np.ones((1, 6))))


def test_threads_are_those_of_the_environment_or_the_cores(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert available_threads() == threads_for(SMALL) == 3 and threads_for(SMALL - 1) == 1
    for word in ("", "0", "4,2"):
        monkeypatch.setenv("OMP_NUM_THREADS", word)
        monkeypatch.setattr("os.sched_getaffinity", lambda process: {0, 5}, raising=False)
        assert available_threads() == 2
    monkeypatch.delattr("os.sched_getaffinity")
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    assert available_threads() == 8, "a Mac"
