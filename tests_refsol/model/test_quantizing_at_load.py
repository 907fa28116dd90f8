"""Weights that stay quantised, and weights that are quantised at load: which of them, in which form, at which cost."""

from types import SimpleNamespace

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tiny_llm_engine.loading import QUANTIZED_ON_HPU, load_checkpoint
from tiny_llm_engine.machine.installation import installed_backends
from tiny_llm_engine.models.files import CheckpointError
from tiny_llm_engine.models.quantization import EMBEDDING, WeightQuantizer
from tiny_llm_engine.solutions.port import Port

BACKENDS = installed_backends()
HEAD = "lm_head.weight"
GATE, NORM = "model.layers.0.mlp.gate_proj.weight", "model.layers.0.input_layernorm.weight"
NARROW = "model.layers.1.mlp.gate_proj.weight"  # its rows are no number of groups


@pytest.fixture(params=BACKENDS)
def port(request) -> Port:
    return Port("ref", request.param, "cpu")


@pytest.fixture
def plain(folder) -> dict[str, np.ndarray]:
    """Makes the folder a checkpoint of plain weights, and returns them."""
    rng = np.random.default_rng(1)
    shapes = {EMBEDDING: (320, 32), HEAD: (320, 32), GATE: (48, 64), NARROW: (48, 40), NORM: (64,)}
    arrays = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    arrays[HEAD] = arrays[EMBEDDING]  # `config.json` ties them; another head would be used
    save_file(arrays, folder / "model.safetensors")
    return arrays


@pytest.fixture
def quantized(folder, plain, edit, port) -> dict[str, np.ndarray]:
    """Makes the folder a checkpoint as mlx-lm quantises it, embedding and head too; the matrices that it stands for."""
    tensors, dense = {NORM: plain[NORM]}, {NORM: plain[NORM]}
    for name in (EMBEDDING, HEAD, GATE):
        words, scales, biases = port.quantize_weights(port.array(plain[name]), 32, 4)
        stem = name.removesuffix(".weight")
        parts = {name: words, f"{stem}.scales": scales, f"{stem}.biases": biases}
        tensors |= {part: port.numpy(array) for part, array in parts.items()}
        dense[name] = port.numpy(port.dequantize_weights(words, scales, biases, 32, 4))
    save_file(tensors, folder / "model.safetensors")
    edit("config.json", quantization={"group_size": 32, "bits": 4})
    return dense


def load(port: Port, folder, bits: int | None = None, dtype: str = "float32"):
    return load_checkpoint(folder, port.name, "cpu", dtype, WeightQuantizer(port, bits)).weights


def product(port: Port, weights, columns: int) -> np.ndarray:
    """The matrix that quantised weights multiply by."""
    return port.numpy(port.quantized_linear(port.array(np.eye(columns)[:5]), weights)).T


@pytest.mark.parametrize("bits", [4, 8])
def test_the_matrices_of_the_layers_are_quantized_and_nothing_else(port, folder, plain, edit, bits):
    edit("config.json", tie_word_embeddings=False)
    weights = load(port, folder, bits)
    if bits == 8:
        assert type(weights[GATE]) is port.QuantizedWeights and weights[GATE].group_size == 64
    else:
        assert type(weights[GATE]) is port.QuantizedWeights and weights[GATE].group_size == 32
        np.testing.assert_allclose(product(port, weights[GATE], 64), plain[GATE][:, :5], atol=0.3)
    for name in (EMBEDDING, HEAD, NARROW, NORM):
        np.testing.assert_array_equal(port.numpy(weights[name]), plain[name])


def test_bytes_are_those_of_the_formula(port, folder, plain):
    assert load(port, folder, 4, "bfloat16")[GATE].nbytes == 48 * 64 // 2 + 2 * 2 * 48 * 64 // 32


def test_without_bits_nothing_is_quantized(port, folder, plain):
    weights = load(port, folder)
    assert {name: tuple(array.shape) for name, array in weights.items() if name != HEAD} == {
        name: array.shape for name, array in plain.items() if name != HEAD
    }
    assert not any(isinstance(array, port.QuantizedWeights) for array in weights.values())


@pytest.mark.parametrize("tied", [True, False])
def test_a_quantized_checkpoint_stays_quantized(port, folder, quantized, edit, tied):
    edit("config.json", tie_word_embeddings=tied)
    weights = load(port, folder)
    assert (HEAD in weights) != tied
    for name in {EMBEDDING, GATE, HEAD} & weights.keys():
        assert type(weights[name]) is port.QuantizedWeights, name
        assert weights[name].shape == quantized[name].shape
    np.testing.assert_allclose(product(port, weights[GATE], 64), quantized[GATE][:, :5], atol=0.02)
    rows = port.embedding_of(320, 32, weights[EMBEDDING])
    np.testing.assert_array_equal(port.numpy(rows(port.array([3, 319]))), quantized[EMBEDDING][[3, 319]])
    np.testing.assert_array_equal(port.numpy(weights[NORM]), quantized[NORM])


def test_only_a_table_that_is_multiplied_by_has_both_forms(port, folder, quantized, edit):
    sizes = {}
    for tied in (True, False):
        edit("config.json", tie_word_embeddings=tied)
        table = load(port, folder, dtype="bfloat16")[EMBEDDING]
        sizes[tied] = table.nbytes
        assert table.weight is not None and (tied or table.prepared is None)
    # The words, and scales and biases as they are stored, in float32; the kernel's layout has them in bf16.
    words, constants = 320 * 32 // 2, 2 * 320
    assert sizes[False] == words + 4 * constants
    assert sizes[True] in (sizes[False], sizes[False] + words + 2 * constants)


def test_scales_come_in_the_models_type(port, folder, quantized):
    assert load(port, folder, dtype="bfloat16")[EMBEDDING].dtype == port.dtype("bfloat16")


def test_a_quantized_checkpoint_takes_its_own_bits_and_no_others(port, folder, quantized):
    assert load(port, folder, 4).keys() == load(port, folder).keys()
    with pytest.raises(CheckpointError) as caught:
        load(port, folder, 8)
    message = (
        "its weights have 4 bits already: leave --quantize out, or take the model that they were made from"
    )
    assert str(caught.value) == f"{folder}: {message}"


def test_week_1_still_gets_plain_arrays(port, folder, quantized):
    weights = load_checkpoint(folder, port.name, "cpu", "float32").weights
    np.testing.assert_array_equal(port.numpy(weights[GATE]), quantized[GATE])


@pytest.mark.parametrize(
    ("bits", "device", "warns"), [(4, "hpu", True), (4, "cpu", False), (None, "hpu", False)]
)
def test_quantized_weights_on_a_gaudi_come_with_a_warning(
    port, folder, plain, capfd, monkeypatch, bits, device, warns
):
    """The device is only a name here: the arrays stay on the CPU."""
    monkeypatch.setattr(port.backend_module, "pick_device", lambda name: name)
    monkeypatch.setattr(port.backend_module, "place", lambda array, *_: array)
    monkeypatch.setattr(WeightQuantizer, "quantize", lambda self, name, array, config: array)
    load_checkpoint(folder, port.name, device, "float32", WeightQuantizer(port, bits))
    assert (QUANTIZED_ON_HPU in capfd.readouterr().err) == warns


def test_nothing_is_printed_without_a_terminal(port, folder, plain, capfd):
    save_file({name: array for name, array in plain.items() if name != NARROW}, folder / "model.safetensors")
    load(port, folder, 4)
    assert capfd.readouterr() == ("", "")


def test_matrices_that_stay_as_they_are_are_counted(port, folder, plain, capfd):
    load(port, folder, 4)
    line = "quantising to 4 bits takes rows of a multiple of 32 numbers: 1 of the layers' 2 matrices stay as they are"
    assert capfd.readouterr() == ("", line + "\n")


def test_a_model_of_which_nothing_can_be_quantized_is_refused(port, folder, plain):
    save_file({name: array for name, array in plain.items() if name != GATE}, folder / "model.safetensors")
    with pytest.raises(ValueError, match="no matrix of the layers has them: load the model without it"):
        load(port, folder, 4)


@pytest.mark.parametrize("part", ["scales", "biases"])
def test_a_scale_that_is_nan_is_named(port, folder, quantized, part):
    name = GATE.replace("weight", part)
    tensors = load_file(folder / "model.safetensors")
    tensors[name][3, 1] = np.nan
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=f"{name}' holds NaN or infinity"):
        load(port, folder)


UP = "model.layers.0.mlp.up_proj.weight"
KEPT = [
    ("cpu", 4, EMBEDDING, True),
    ("cpu", 8, EMBEDDING, False),
    ("cpu", 8, UP, True),
    ("gpu", 8, EMBEDDING, True),
    ("cuda", 4, UP, True),
    ("cuda", 8, UP, False),
    ("cuda", 8, EMBEDDING, False),
    ("hpu", 8, EMBEDDING, False),
]


@pytest.mark.parametrize(("device", "bits", "name", "kept"), KEPT)
def test_what_stays_quantised_has_a_kernel_on_its_device(device, bits, name, kept):
    """Without one every step dequantises the matrix: a model of 8 bits did not end its first answers on an H200."""
    assert WeightQuantizer(SimpleNamespace(device=device)).keeps(name, bits) is kept
