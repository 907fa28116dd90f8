"""4-bit and 8-bit checkpoints of mlx-lm: both ports dequantise them to what MLX itself would."""

import json
from importlib import import_module

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from support.quantized import as_words
from tiny_llm_kit.engine.backends.installation import installed_backends
from tiny_llm_kit.engine.loading import load_checkpoint
from tiny_llm_kit.model.files import CheckpointError

BACKENDS = installed_backends()
NAME = "model.layers.0.mlp.gate_proj"


def load(folder, backend: str, dtype: str = "float32") -> np.ndarray:
    checkpoint = load_checkpoint(folder, backend, device="cpu", dtype=dtype)
    assert all(not name.endswith((".scales", ".biases")) for name in checkpoint.weights)
    return import_module(f"tiny_llm_kit.engine.backends.backend_{backend}").to_numpy(
        checkpoint.weights[f"{NAME}.weight"]
    )


@pytest.fixture
def quantized(folder, edit):
    """Makes the folder a quantised checkpoint; returns the weight that it stands for, in float32."""

    def make(bits: int, group_size: int) -> np.ndarray:
        rng = np.random.default_rng(4)
        numbers = rng.integers(0, 2**bits, size=(6, 3 * group_size))
        # Steps of 1/64: products and sums are exact, so every port must give the same bits.
        scales, biases = (rng.integers(-64, 64, size=(6, 3)).astype(np.float32) / 64 for _ in "ab")
        tensors = {
            f"{NAME}.weight": as_words(numbers, bits),
            f"{NAME}.scales": scales,
            f"{NAME}.biases": biases,
        }
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
        names = [f"{NAME}.weight", f"{NAME}.scales", f"{NAME}.biases"]
        mx.save_safetensors(str(folder / "model.safetensors"), dict(zip(names, parts, strict=True)))
        edit("config.json", quantization={"group_size": 64, "bits": bits})
        weight, scales, biases = parts
        in_float32 = (weight, scales.astype(mx.float32), biases.astype(mx.float32))
        expected = np.array(mx.dequantize(*in_float32, group_size=64, bits=bits))
        # MLX may fuse multiply and add, torch rounds twice: one unit in the last place of the larger term.
        np.testing.assert_allclose(
            load(folder, backend), expected, rtol=0, atol=2**-22 * np.abs(expected).max()
        )


@pytest.mark.parametrize("backend", BACKENDS)
def test_scales_may_be_in_another_shard(folder, quantized, backend):
    expected = quantized(4, 64)
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    weight_map = {name: f"model-{number}.safetensors" for number, name in enumerate(tensors)}
    for name, file in weight_map.items():
        save_file({name: tensors[name]}, folder / file)
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": weight_map}), encoding="utf-8"
    )
    np.testing.assert_array_equal(load(folder, backend), expected.astype(np.float32))


def without_scales(tensors: dict) -> None:
    del tensors[f"{NAME}.scales"]


def with_scales_of_another_group(tensors: dict) -> None:
    tensors[f"{NAME}.scales"] = np.ones((6, 6), np.float32)


def with_biases_of_another_group(tensors: dict) -> None:
    tensors[f"{NAME}.biases"] = np.ones((6, 1), np.float32)


def with_words_in_one_row(tensors: dict) -> None:
    tensors[f"{NAME}.weight"] = tensors[f"{NAME}.weight"].reshape(-1)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            without_scales,
            f"quantised tensor '{NAME}.weight' needs '{NAME}.scales' as floats; download the model again",
        ),
        (
            with_scales_of_another_group,
            f"quantised tensor '{NAME}.weight' [6, 24] does not fit its scales [6, 6] and biases [6, 3] "
            "at quantization.bits 4 and group_size 64; download the model again",
        ),
        (
            with_biases_of_another_group,
            f"quantised tensor '{NAME}.weight' [6, 24] does not fit its scales [6, 3] and biases [6, 1] "
            "at quantization.bits 4 and group_size 64; download the model again",
        ),
        (
            with_words_in_one_row,
            f"quantised tensor '{NAME}.weight' [144] does not fit its scales [6, 3] and biases [6, 3] "
            "at quantization.bits 4 and group_size 64; download the model again",
        ),
    ],
)
def test_parts_that_do_not_fit(folder, quantized, backend, change, message):
    quantized(4, 64)
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(CheckpointError) as caught:
        load(folder, backend)
    assert str(caught.value) == f"{folder / 'model.safetensors'}: {message}"
