"""Linear layers: one call for every kind of weight."""

import numpy as np
import pytest

from tiny_llm_course.grading.small_models import CASES, random_checkpoint
from tiny_llm_engine.machine.installation import installed_backends
from tiny_llm_engine.solutions.port import Port


@pytest.mark.parametrize("backend", installed_backends())
@pytest.mark.parametrize("rows", [1, 3, 4, 70])
@pytest.mark.parametrize("O", [1, 256, 700])
def test_bf16_products_are_right_for_any_number_of_rows(backend, rows, O):
    b, rng = Port("tiny_llm_ref", backend, "cpu"), np.random.default_rng(rows)
    x, w, bias = (b.array(rng.normal(size=shape), "bfloat16") for shape in ((2, rows, 96), (O, 96), (O,)))
    expected = b.numpy(x).astype(float) @ b.numpy(w).astype(float).T + b.numpy(bias)
    out = b.linear_layer(w, bias)(x)
    assert out.dtype == x.dtype
    np.testing.assert_allclose(b.numpy(out), expected, atol=0.05, rtol=0.02)


@pytest.mark.parametrize("backend", installed_backends())
def test_every_kind_of_weight_tells_its_shape_and_its_bytes(backend):
    b, rng = Port("tiny_llm_ref", backend, "cpu"), np.random.default_rng(0)
    w, bias = b.array(rng.normal(size=(48, 64)), "float32"), b.array(np.ones(48), "float32")
    quantized = b.quantize_matrix(w, 32, 4)
    for weight, nbytes in ((w, 48 * 64 * 4), (quantized, quantized.nbytes)):
        for layer in (b.linear_layer(weight), b.linear_layer(weight, bias)):
            assert (layer.shape, layer.nbytes) == ((48, 64), nbytes)
    assert b.linear_layer(quantized) is quantized, "it is a layer already"


@pytest.mark.parametrize("backend", installed_backends())
@pytest.mark.parametrize("tied", [True, False])
def test_the_head_is_a_linear_layer_as_any_other(backend, tied):
    """The table of a tied model is its largest matrix: it is not copied, and a faster product can take its place."""
    b, case = Port("tiny_llm_ref", backend, "cpu"), CASES["tied-1" if tied else "untied-3"]
    model = b.Qwen3ModelWeek2(random_checkpoint(b, case))
    assert (model.w_lm_head.weight is model.embedding.weight) is tied
    x, seen = b.array(np.ones((2, 1, case.config.hidden_size)), "float32"), []
    head = model.w_lm_head
    model.w_lm_head = lambda x: seen.append(x) or head(x)
    assert tuple(model.head(x).shape) == (2, 1, case.config.vocab_size) and len(seen) == 1
