"""The one product for every kind of weight."""

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
