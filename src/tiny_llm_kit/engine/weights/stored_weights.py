"""Reads the weights of a checkpoint: each is taken from its file, checked, quantised or converted, and placed."""

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

from safetensors import SafetensorError

from ...model.config import ModelConfig
from ...model.files import CheckpointError, shown
from ...model.quantization import WeightQuantizer
from ...model.quantized_tensors import parts
from ...model.safetensors_folder import TensorInfo, refused
from ...solution_types import Array
from ..backend import Backend

LARGEST_FLOAT16 = 65504
BYTES = {"F32": 4, "F16": 2, "BF16": 2, "U32": 4}


class Stored(Protocol):
    """The tensors of a model as they are stored, each taken once. A dict is one."""

    def pop(self, key: str, /) -> Array: ...


def whole_files(backend_module: Backend, headers: Mapping[str, TensorInfo]) -> dict[str, Array]:
    """All tensors of a model's files; none is read yet.

    Raises:
        CheckpointError: a library does not open a file.
    """
    stored: dict[str, Array] = {}
    for file in {info.file: None for info in headers.values()}:
        stored.update(_open(backend_module, file))
    return stored


def bytes_of(headers: Mapping[str, TensorInfo], names: Iterable[str]) -> int:
    """Bytes of these weights in their files, scales and biases included."""
    tensors = (part for name in names for part in (parts(name) if headers[name].dtype == "U32" else [name]))
    return sum(math.prod(headers[each].shape) * BYTES[headers[each].dtype] for each in tensors)


def read_weights(
    backend_module: Backend,
    stored: Stored,
    headers: Mapping[str, TensorInfo],
    names: list[str],
    config: ModelConfig,
    device: str,
    dtype: str,
    quantizer: WeightQuantizer | None,
) -> dict[str, Any]:
    """Read one weight after the other, so that only one is in memory in its stored and in its final form.

    Args:
        stored: the tensors, of the shapes in `headers`.
        headers: of the tensors, by name.
        names: the weights that are wanted; a quantised one has two further tensors.
        config: of the model.
        device, dtype, quantizer: see `load_checkpoint`.

    Raises:
        CheckpointError: a weight is not finite, or too large for float16.
    """
    weights = {}

    def taken(name: str) -> Array:
        return _checked(backend_module, stored.pop(name), headers[name], name, dtype)

    for name in _with_progress(names) if quantizer and quantizer.bits else names:
        if headers[name].dtype == "U32":
            words, *numbers = parts(name)
            triple = [stored.pop(words), *map(taken, numbers)]
            weights[name] = _quantized_weight(backend_module, name, triple, config, device, dtype, quantizer)
        elif quantizer and quantizer.applies_to(name, headers[name].shape):
            weights[name] = quantizer.quantize(name, backend_module.place(taken(name), dtype, "cpu"), config)
        else:
            weights[name] = backend_module.place(taken(name), dtype, device)
    return weights


def _checked(backend_module: Backend, array: Array, info: TensorInfo, name: str, dtype: str) -> Array:
    """The stored array, after a check that its numbers are finite and fit the type.

    Raises:
        CheckpointError: NaN or infinity, which would spread to every answer; or too large for float16.
    """
    low, high = backend_module.extremes(array) if math.prod(info.shape) else (0.0, 0.0)
    if not math.isfinite(low) or not math.isfinite(high):
        raise CheckpointError(
            f"{info.file}: tensor {shown(name)} holds NaN or infinity; download the model again"
        )
    if dtype == "float16" and max(-low, high) > LARGEST_FLOAT16:
        raise CheckpointError(
            f"{info.file}: tensor {shown(name)} holds {max(-low, high):g}, and float16 ends at 65504: choose bfloat16 "
            "or float32"
        )
    return array


def _quantized_weight(
    backend_module: Backend,
    name: str,
    triple: list,
    config: ModelConfig,
    device: str,
    dtype: str,
    quantizer: WeightQuantizer | None,
) -> Any:
    """Words, scales and biases as the solution's quantised matrix, or dequantised to one array."""
    if quantizer:
        words, scales, biases = triple
        kept = (
            backend_module.place(words, None, "cpu"),
            backend_module.place(scales, dtype, "cpu"),
            backend_module.place(biases, dtype, "cpu"),
        )
        return quantizer.keep(name, kept, config)
    quantization = config.quantization
    assert quantization is not None  # `check_quantized_parts` has accepted the names of these parts
    words, scales, biases = triple
    array = backend_module.dequantize(
        words, scales, biases, quantization.group_size, quantization.bits, device
    )
    return backend_module.place(array, dtype, device)


def _with_progress(names: list[str]) -> Iterable[str]:
    """The names, with a progress bar on a terminal: quantising takes longer than reading."""
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    quiet = not console.is_terminal
    return track(names, "quantising weights", console=console, transient=True, disable=quiet)


def _open(backend_module: Backend, file: Path) -> dict[str, Any]:
    try:
        return backend_module.open_safetensors(file)
    except (SafetensorError, RuntimeError, ValueError, OSError) as error:
        # MLX's reader may reject what safetensors accepts.
        raise refused(file, error) from None
