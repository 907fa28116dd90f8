"""Quantised weights as mlx-lm stores them: `name.weight` in U32 words, with `name.scales` and `name.biases`.

A number is `scale * q + bias`, with one scale and bias per `group_size` columns of a row. Knows no arrays: checks the
headers, and names the three parts of a quantised weight.
"""

from collections.abc import Container, Mapping

from .config import Quantization
from .files import CheckpointError, shown
from .safetensors_folder import TensorInfo


def parts(name: str) -> tuple[str, str, str]:
    """`a.weight` -> `a.weight`, `a.scales`, `a.biases`."""
    stem = name.removesuffix(".weight")
    return name, f"{stem}.scales", f"{stem}.biases"


def weight_of(name: str, weights: Container[str]) -> tuple[str, str]:
    """The weight that a tensor is a part of, and the part: `a.scales` -> `a.weight`, "scales"."""
    stem, _, part = name.rpartition(".")
    return (name, "weight") if name in weights else (f"{stem}.weight", part)


def check_quantized_parts(
    tensors: Mapping[str, TensorInfo], quantization: Quantization | None
) -> dict[str, TensorInfo]:
    """The weights of a model, quantised or not, without the scales and biases of quantised ones.

    Raises:
        CheckpointError: a quantised weight has no scales or biases, or their shapes do not fit config.json.
    """
    quantized = [name for name, info in tensors.items() if info.dtype == "U32"]
    for name in quantized:
        _check_one(name, tensors, quantization)
    companions = {part for name in quantized for part in parts(name)[1:]}
    return {name: info for name, info in tensors.items() if name not in companions}


def _check_one(name: str, tensors: Mapping[str, TensorInfo], quantization: Quantization | None) -> None:
    file = tensors[name].file
    if quantization is None:
        raise CheckpointError(
            f"{file}: tensor {shown(name)} is quantised (U32), but config.json has no quantization; "
            "download both files again"
        )
    for part in parts(name)[1:]:
        if part not in tensors or tensors[part].dtype == "U32":
            raise CheckpointError(
                f"{file}: quantised tensor {shown(name)} needs {shown(part)} as floats; download the model again"
            )
    weight, scales, biases = (tensors[part].shape for part in parts(name))
    quantization = quantization.of(name)
    groups = weight[-1] * 32 // quantization.bits / quantization.group_size if weight else 0
    if len(weight) != 2 or scales != (weight[0], groups) or biases != scales:
        raise CheckpointError(
            f"{file}: quantised tensor {shown(name)} {list(weight)} does not fit its scales {list(scales)} and biases "
            f"{list(biases)} at quantization.bits {quantization.bits} and group_size {quantization.group_size}; "
            "download the model again"
        )
