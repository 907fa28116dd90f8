"""4-bit and 8-bit checkpoints of mlx-lm: both ports dequantise them to what MLX itself would."""

import json
from importlib import import_module

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from support.quantized import as_words
from tiny_llm_engine.loading import load_checkpoint
from tiny_llm_engine.machine.installation import installed_backends
from tiny_llm_engine.models.files import CheckpointError

BACKENDS = installed_backends()
WEIGHT, SCALES, BIASES = (f"model.layers.0.mlp.gate_proj.{part}" for part in ("weight", "scales", "biases"))


def load(folder, backend: str, dtype: str = "float32") -> np.ndarray:
    checkpoint = load_checkpoint(folder, backend, device="cpu", dtype=dtype)
    assert all(not name.endswith((".scales", ".biases")) for name in checkpoint.weights)
    return import_module(f"tiny_llm_engine.backends.backend_{backend}").to_numpy(checkpoint.weights[WEIGHT])


@pytest.fixture
def quantized(folder, edit):
    """Makes the folder a quantised checkpoint; returns the weight that it stands for, in float32."""

    def make(bits: int, group_size: int) -> np.ndarray:
        rng = np.random.default_rng(4)
        numbers = rng.integers(0, 2**bits, size=(6, 3 * group_size))
        # Steps of 1/64: products and sums are exact, so every port must give the same bits.
        scales, biases = (rng.integers(-64, 64, size=(6, 3)).astype(np.float32) / 64 for _ in "ab")
        tensors = {WEIGHT: as_words(numbers, bits), SCALES: scales, BIASES: biases}
        save_file(tensors, folder / "model.safetensors")
        edit("config.json", quantization={"group_size": group_size, "bits": bits})
        return (numbers.reshape(6, 3, -1) * scales[..., None] + biases[..., None]).reshape(6, -1)

    return make


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("bits", "group_size"), [(4, 32), (4, 64), (8, 64), (8, 128)])
def test_numbers_are_dequantized(folder, quantized, backend, bits, group_size, capsys):
    """Every reader of the model hears of it, and of the memory that it takes."""
    expected = quantized(bits, group_size)
    np.testing.assert_array_equal(load(folder, backend), expected.astype(np.float32))
    assert capsys.readouterr().err == f"weights in {bits} bits are dequantised to float32: 0 MB\n"


if "mlx" in BACKENDS:  # the oracle

    @pytest.mark.parametrize("backend", BACKENDS)
    @pytest.mark.parametrize("stored", ["float32", "bfloat16", "float16"])
    @pytest.mark.parametrize("bits", [4, 8])
    def test_what_mlx_quantized_is_what_mlx_dequantizes(folder, edit, backend, stored, bits):
        import mlx.core as mx

        dense = mx.random.normal((96, 128), key=mx.random.key(1)).astype(getattr(mx, stored))
        parts = mx.quantize(dense, group_size=64, bits=bits)
        file = str(folder / "model.safetensors")
        mx.save_safetensors(file, dict(zip((WEIGHT, SCALES, BIASES), parts, strict=True)))
        edit("config.json", quantization={"group_size": 64, "bits": bits})
        weight, scales, biases = parts
        in_float32 = (weight, scales.astype(mx.float32), biases.astype(mx.float32))
        expected = np.array(mx.dequantize(*in_float32, group_size=64, bits=bits))
        # MLX may fuse multiply and add, torch rounds twice: one unit in the last place of the larger term.
        atol = 2**-22 * np.abs(expected).max()
        np.testing.assert_allclose(load(folder, backend), expected, rtol=0, atol=atol)


@pytest.mark.parametrize("backend", BACKENDS)
def test_scales_may_be_in_another_shard(folder, quantized, backend):
    expected = quantized(4, 64)
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    weight_map = {name: f"model-{number}.safetensors" for number, name in enumerate(tensors)}
    for name, file in weight_map.items():
        save_file({name: tensors[name]}, folder / file)
    index = json.dumps({"weight_map": weight_map})
    (folder / "model.safetensors.index.json").write_text(index, encoding="utf-8")
    np.testing.assert_array_equal(load(folder, backend), expected.astype(np.float32))


def unfit(weight="[6, 24]", scales="[6, 3]", biases="[6, 3]") -> str:
    return (
        f"quantised tensor '{WEIGHT}' {weight} does not fit its scales {scales} and biases {biases} "
        "at quantization.bits 4 and group_size 64; download the model again"
    )


NO_SCALES = f"quantised tensor '{WEIGHT}' needs '{SCALES}' as floats; download the model again"
CHANGES = {
    NO_SCALES: lambda parts: parts.pop(SCALES),
    unfit(scales="[6, 6]"): lambda parts: parts.update({SCALES: np.ones((6, 6), np.float32)}),
    unfit(biases="[6, 1]"): lambda parts: parts.update({BIASES: np.ones((6, 1), np.float32)}),
    unfit(weight="[144]"): lambda parts: parts.update({WEIGHT: parts[WEIGHT].reshape(-1)}),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("message", "change"), CHANGES.items(), ids=["none", "scales", "biases", "words"])
def test_parts_that_do_not_fit(folder, quantized, backend, change, message):
    quantized(4, 64)
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(CheckpointError) as caught:
        load(folder, backend)
    assert str(caught.value) == f"{folder / 'model.safetensors'}: {message}"
