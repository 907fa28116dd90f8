"""A model's weights in memory, the same object on both ports. The arrays are made in `backend_*.py`."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from os import PathLike
from pathlib import Path
from types import ModuleType
from typing import Any

from rich.console import Console
from rich.progress import track
from safetensors import SafetensorError

from .config import ModelConfig, read_config
from .files import CheckpointError, shown
from .hub import model_folder
from .quantization import Packing
from .quantized_tensors import check_packing, parts
from .safetensors_folder import TensorInfo, read_headers


@dataclass(frozen=True)
class Checkpoint:
    """A model's configuration and its weights by Hugging Face name.

    Args:
        config: the shape of the model; `config.tie_word_embeddings` says that the head is the embedding.
        weights: name -> array of this port, all of one type and on one device; where the checkpoint was loaded with
            a `Packing`, also `QuantizedWeights` of the solution. A test may pass a dict.
        folder: where the weights came from, for error lines.
        files: name -> file name in `folder`, for error lines.
    """

    config: ModelConfig
    weights: Mapping[str, Any]
    folder: Path | None = None
    files: Mapping[str, str] = field(default_factory=dict)

    def weight(self, name: str, *shape: int) -> Any:
        """The array called `name`, which must have this shape.

        Raises:
            CheckpointError: it is absent or has another shape.
        """
        if name not in self.weights:
            raise CheckpointError(
                f"{self._where()}: tensor {shown(name)} is missing; download the model again"
            )
        array = self.weights[name]
        if tuple(array.shape) != shape:
            raise CheckpointError(
                f"{self._where(name)}: tensor {shown(name)} has shape {tuple(array.shape)}, but config.json asks for "
                f"{shape}; one of the two is of another model: download both again"
            )
        return array

    def _where(self, name: str | None = None) -> str:
        if self.folder is None:
            return "checkpoint"
        return str(self.folder / self.files.get(name, ""))


def load_checkpoint(
    model: str | PathLike[str],
    backend: str,
    device: str = "auto",
    dtype: str = "auto",
    packing: Packing | None = None,
) -> Checkpoint:
    """Reads a model's weights onto a device, each moved and converted once; nothing passes through NumPy.

    Args:
        model: a shipped name, a folder or a hub id; see `hub.model_folder`.
        backend: "mlx" or "torch". On a Gaudi, resolve the solution first: its hpu.py must precede torch.
        device: "auto", "cpu", "gpu", "cuda" or "hpu".
        dtype: "auto" (float32 on a CPU, bfloat16 elsewhere), "float32", "bfloat16" or "float16".
        packing: how packed weights stay packed, and whether plain ones are packed now; None dequantises.

    Raises:
        CheckpointError: the folder is unusable, or packed in other bits than `packing` asks for; every header is
            checked before the first weight is read.
        ValueError: no such device or dtype here.
    """
    kit = import_module(f"tiny_llm_kit.runtime.backend_{backend}")
    device = kit.pick_device(device)
    dtype = kit.default_dtype(device) if dtype == "auto" else dtype
    if dtype not in kit.DTYPES:
        raise ValueError(f"dtype {dtype!r}: choose auto, {', '.join(kit.DTYPES)}")
    folder = model_folder(model)
    config = read_config(folder)
    headers = read_headers(folder)
    names = _weight_names(headers, config)
    _check_bits(folder, config, packing)
    weights = _read_weights(kit, headers, names, config, device, dtype, packing)
    return Checkpoint(config, weights, folder, {name: headers[name].file.name for name in names})


def _weight_names(headers: Mapping[str, TensorInfo], config: ModelConfig) -> list[str]:
    names = check_packing(headers, config.quantization)
    if config.tie_word_embeddings:
        # Some files keep a copy of the tied head, which is the largest tensor of a small model.
        names = [name for name in names if name != "lm_head.weight"]
    return list(names)


def _check_bits(folder: Path, config: ModelConfig, packing: Packing | None) -> None:
    if packing and packing.bits and config.quantization and packing.bits != config.quantization.bits:
        raise CheckpointError(
            f"{folder}: its weights have {config.quantization.bits} bits already: leave --quantize out, or take the "
            "model that they were made from"
        )


def _read_weights(
    kit: ModuleType,
    headers: Mapping[str, TensorInfo],
    names: list[str],
    config: ModelConfig,
    device: str,
    dtype: str,
    packing: Packing | None,
) -> dict[str, Any]:
    """One weight after the other, so that only one is in memory both as it is stored and as it is wanted."""
    stored = {}
    for file in {info.file: None for info in headers.values()}:
        stored.update(_open(kit, file))
    weights = {}
    for name in _with_progress(names) if packing and packing.bits else names:
        if headers[name].dtype == "U32":
            packed = [stored.pop(part) for part in parts(name)]
            weights[name] = _packed_weight(kit, name, packed, config, device, dtype, packing)
        elif packing and packing.applies_to(name, headers[name].shape):
            weights[name] = packing.pack(name, kit.place(stored.pop(name), dtype, "cpu"), config)
        else:
            weights[name] = kit.place(stored.pop(name), dtype, device)
    return weights


def _packed_weight(
    kit: ModuleType,
    name: str,
    packed: list,
    config: ModelConfig,
    device: str,
    dtype: str,
    packing: Packing | None,
) -> Any:
    """Words, scales and biases as the solution holds them, or as one array."""
    if packing:
        words, scales, biases = packed
        kept = kit.place(words, None, "cpu"), kit.place(scales, dtype, "cpu"), kit.place(biases, dtype, "cpu")
        return packing.keep(name, kept, config)
    quantization = config.quantization
    array = kit.dequantize(*packed, quantization.group_size, quantization.bits, device)
    return kit.place(array, dtype, device)


def _with_progress(names: list[str]) -> Iterable[str]:
    """The names, with a bar on a terminal: packing takes longer than reading."""
    console = Console(stderr=True)
    quiet = not console.is_terminal
    return track(names, "packing weights", console=console, transient=True, disable=quiet)


def _open(kit: ModuleType, file: Path) -> dict[str, Any]:
    try:
        return kit.open_safetensors(file)
    except (SafetensorError, RuntimeError, ValueError, OSError) as error:
        # The library's reader may refuse what passed our checks, for example metadata of the wrong type.
        raise CheckpointError(f"{file}: {shown(str(error))}; download the file again") from None
