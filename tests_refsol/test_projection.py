"""The one product for every kind of weight: which way it goes on torch's CPU, and that all ways agree."""

import sys

import numpy as np
import pytest

from tiny_llm_kit.course.grading.goldens import CASES, random_checkpoint
from tiny_llm_kit.engine.port import Port, installed_backends


@pytest.mark.parametrize("backend", installed_backends())
@pytest.mark.parametrize("rows", [1, 3, 4, 70])
@pytest.mark.parametrize("O", [1, 256, 700])
def test_bf16_products_are_right_for_any_number_of_rows(backend, rows, O):
    b, rng = Port("tiny_llm_ref", backend, "cpu"), np.random.default_rng(rows)
    x, w, bias = (b.array(rng.normal(size=shape), "bfloat16") for shape in ((2, rows, 96), (O, 96), (O,)))
    expected = b.numpy(x).astype(float) @ b.numpy(w).astype(float).T + b.numpy(bias)
    out = b.project(x, w, bias)
    assert out.dtype == x.dtype
    np.testing.assert_allclose(b.numpy(out), expected, atol=0.05, rtol=0.02)


@pytest.mark.port("torch")
@pytest.mark.parametrize(("units", "tiles"), [(True, False), (False, True)])
def test_many_rows_go_in_float32_tiles_where_the_cpu_has_no_bf16(monkeypatch, units, tiles):
    from tiny_llm_ref.torch_backend import kernels, projection

    b, called = Port("tiny_llm_ref", "torch", "cpu"), []
    inner = kernels._linear_in_float32
    monkeypatch.setattr(kernels, "_has_bf16_units", lambda: units)
    monkeypatch.setattr(kernels, "_linear_in_float32", lambda *a: called.append(a) or inner(*a))
    x, w = b.array(np.ones((9, 96)), "bfloat16"), b.array(np.ones((300, 96)), "bfloat16")
    projection.project(x, w)
    assert bool(called) == tiles
    for few in (x[:1], x[:7]):
        projection.project(few, w)
    projection.project(x.float(), w.float())
    assert len(called) == tiles, "few rows, and float32, need no tiles"


@pytest.mark.port("torch")
@pytest.mark.parametrize("units", [True, False])
def test_one_row_is_a_vector_where_the_cpu_has_bf16_units(monkeypatch, units):
    from tiny_llm_ref.torch_backend import kernels, projection

    b, called = Port("tiny_llm_ref", "torch", "cpu"), []
    inner = kernels._linear_of_one_row
    monkeypatch.setattr(kernels, "_has_bf16_units", lambda: units)
    monkeypatch.setattr(kernels, "_linear_of_one_row", lambda *a: called.append(a) or inner(*a))
    x, w = b.array(np.ones((1, 2, 96)), "bfloat16"), b.array(np.ones((30, 96)), "bfloat16")
    assert projection.project(x, w).shape == (1, 2, 30) and not called
    assert projection.project(x[:, :1], w).shape == (1, 1, 30) and bool(called) == units
    projection.project(x[:, :1].float(), w.float())
    assert len(called) == units


@pytest.mark.port("torch")
def test_a_bf16_weight_is_never_there_in_float32_as_a_whole(monkeypatch):
    from tiny_llm_ref.torch_backend import kernels, projection

    b = Port("tiny_llm_ref", "torch", "cpu")
    monkeypatch.setattr(kernels, "_has_bf16_units", lambda: False)
    x, w = b.array(np.ones((8, 512)), "bfloat16"), b.array(np.ones((4096, 512)), "bfloat16")
    assert b.peak_bytes(lambda: projection.project(x, w)) < 4096 * 512 * 4 / 4


@pytest.mark.parametrize("backend", installed_backends())
@pytest.mark.parametrize("tied", [True, False])
def test_the_head_takes_the_way_of_every_other_product(backend, tied, monkeypatch):
    """The table of a tied model is its largest matrix: it too must go the fast way for its type and its rows."""
    b, case = Port("tiny_llm_ref", backend, "cpu"), CASES["tied-1" if tied else "untied-3"]
    model = b.Qwen3ModelWeek2(random_checkpoint(b, case))
    table, seen = model.embedding.weight if tied else model.w_lm_head, []
    module = sys.modules[type(model).__module__]
    monkeypatch.setattr(module, "project", lambda x, w: seen.append(w) or b.project(x, w))
    x = b.array(np.ones((2, 1, case.config.hidden_size)), "float32")
    assert tuple(model.head(x).shape) == (2, 1, case.config.vocab_size)
    assert len(seen) == 1 and seen[0] is table
