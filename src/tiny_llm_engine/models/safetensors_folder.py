"""The safetensors files of a model folder: finds them, and checks their headers before a weight is read.

A file is 8 bytes of header length, the header in JSON, then the tensors' bytes. MLX's reader checks a header less
strictly than safetensors' own, so the latter opens every file once, here, before either reads a weight.
Knows no arrays. Format: https://github.com/huggingface/safetensors
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from .files import CheckpointError, read_json, shown

INDEX = "model.safetensors.index.json"
DTYPES = ("F32", "F16", "BF16", "U32")  # U32: words of several numbers of 4 or 8 bits each
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")


@dataclass(frozen=True)
class TensorInfo:
    """One tensor as its file's header describes it.

    Args:
        dtype: one of `DTYPES`, if a layer reads it.
        stored_as: the type in the file in words, where it is a quantised one.
    """

    file: Path
    dtype: str
    shape: tuple[int, ...]
    stored_as: str = ""


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a model, all of them present.

    Raises:
        CheckpointError: a shard is missing, or the weights are in another format. Pickles are never opened.
    """
    if (folder / "model.safetensors").is_file():
        return [folder / "model.safetensors"]
    if (folder / INDEX).is_file():
        return sorted(set(_weight_map(folder).values()))
    pickles = sorted(file.name for pattern in PICKLES for file in folder.glob(pattern))
    if pickles:
        raise CheckpointError(
            f"{folder / pickles[0]}: a pickle, which may run any code when it is loaded, so it was not opened: convert "
            "it where you trust it (transformers: from_pretrained(old_folder).save_pretrained(new_folder))"
        )
    raise CheckpointError(
        f"{folder / 'model.safetensors'}: not found; check the path, or choose a model with safetensors weights"
    )


def read_headers(folder: Path) -> dict[str, TensorInfo]:
    """All tensors of a model's files by name, read from the headers only.

    Raises:
        CheckpointError: as `weight_files`; or a file contradicts its header or the index.
    """
    tensors: dict[str, TensorInfo] = {}
    for file in weight_files(folder):
        header = read_header(file)
        for name in header.keys() & tensors.keys():
            raise broken(file, f"tensor {shown(name)} is also in {tensors[name].file.name}")
        tensors.update(header)
    if not (folder / "model.safetensors").is_file():
        _check_index(folder, tensors)
    return tensors


def _weight_map(folder: Path) -> dict[str, Path]:
    """The index: the file of each tensor, by name."""
    index = folder / INDEX
    names = read_json(index).get("weight_map")
    if not isinstance(names, dict) or not names:
        raise broken(index, "weight_map is missing or not an object")
    for name in set(map(str, names.values())):
        # A name with a slash could point outside the folder.
        if not re.fullmatch(r"[\w-][\w.-]*\.safetensors", name):
            raise broken(
                index, f"weight_map names {shown(name)}, which is not a safetensors file of this folder"
            )
        if not (folder / name).is_file():
            raise CheckpointError(
                f"{folder / name}: shard not found, but {INDEX} names it; download the model again"
            )
    return {tensor: folder / name for tensor, name in names.items()}


def _check_index(folder: Path, tensors: dict[str, TensorInfo]) -> None:
    listed = _weight_map(folder)
    for name, file in listed.items():
        if name not in tensors or tensors[name].file != file:
            raise broken(folder / INDEX, f"tensor {shown(name)} is not in {file.name}")
    for name in tensors.keys() - listed.keys():
        raise broken(folder / INDEX, f"tensor {shown(name)} of {tensors[name].file.name} is not listed")


def read_header(file: Path) -> dict[str, TensorInfo]:
    """The tensors of one safetensors file by name; the library checks the header against the size of the file.

    Raises:
        CheckpointError: the file is unreadable or cut off.
    """
    try:
        with safe_open(file, framework="np") as tensors:
            slices = {name: tensors.get_slice(name) for name in tensors.keys()}  # noqa: SIM118 (not a dict)
            return {name: _tensor_info(file, name, part) for name, part in slices.items()}
    except (SafetensorError, OSError) as error:
        raise refused(file, error) from None


def _tensor_info(file: Path, name: str, part: Any) -> TensorInfo:
    shape = tuple(part.get_shape())
    # The library also accepts [0, 2**40], which overflows in MLX's reader, and any number of axes.
    if len(shape) > 8 or max(shape, default=0) >= 2**31:
        raise broken(file, f"tensor {shown(name)}: shape {shown(list(shape))} is not that of a weight")
    return TensorInfo(file, part.get_dtype(), shape)


def refused(file: Path, error: Exception) -> CheckpointError:
    """A library's error for a file that it does not open, as a CheckpointError of one line."""
    problem = str(error).removeprefix("Error while deserializing ")
    return broken(file, f"broken, or not safetensors ({shown(problem, 160)})")


def broken(file: Path, problem: str) -> CheckpointError:
    return CheckpointError(f"{file}: {problem}; download the file again")
