"""The safetensors files of a model folder: found, and their headers checked before a weight is read.

A file is 8 bytes of header length, the header in JSON, then the tensors' bytes. Both ports' readers trust
a header to differing degrees, so we check everything it says against the size of the file, once, here.
Knows no arrays. Format: https://github.com/huggingface/safetensors
"""

import math
import re
from dataclasses import dataclass
from pathlib import Path

from .files import CheckpointError, parse_json, read_json, shown

INDEX = "model.safetensors.index.json"
ITEM_BYTES = {
    "F32": 4,
    "F16": 2,
    "BF16": 2,
    "U32": 4,
}  # U32: words that hold the numbers of MLX's 4 and 8 bits
LARGEST_HEADER = 100_000_000  # bytes; the format's own limit
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")


@dataclass(frozen=True)
class TensorInfo:
    """What a header says of one tensor; `begin` and `end` are bytes from the end of the header."""

    file: Path
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


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
    """Every tensor of a model by name, from the headers alone.

    Raises:
        CheckpointError: as `weight_files`; or a file is not what its header says, or not what the index says.
    """
    tensors: dict[str, TensorInfo] = {}
    for file in weight_files(folder):
        header = read_header(file)
        for name in header.keys() & tensors.keys():
            raise _broken(file, f"tensor {shown(name)} is also in {tensors[name].file.name}")
        tensors.update(header)
    if not (folder / "model.safetensors").is_file():
        _check_index(folder, tensors)
    return tensors


def _weight_map(folder: Path) -> dict[str, Path]:
    """The index: the file of each tensor, by name."""
    index = folder / INDEX
    names = read_json(index).get("weight_map")
    if not isinstance(names, dict) or not names:
        raise _broken(index, "weight_map is missing or not an object")
    for name in set(map(str, names.values())):
        # A name with a slash could point outside of the folder.
        if not re.fullmatch(r"[\w-][\w.-]*\.safetensors", name):
            raise _broken(
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
            raise _broken(folder / INDEX, f"tensor {shown(name)} is not in {file.name}")
    for name in tensors.keys() - listed.keys():
        raise _broken(folder / INDEX, f"tensor {shown(name)} of {tensors[name].file.name} is not listed")


def read_header(file: Path) -> dict[str, TensorInfo]:
    """The tensors of one safetensors file by name. Reads the header only, and no more bytes than the file has."""
    size = file.stat().st_size
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if size < 8 or length > min(size - 8, LARGEST_HEADER):
            raise _broken(file, f"truncated or not safetensors: header of {length} bytes in a file of {size}")
        text = stream.read(length)
    try:
        if not text.startswith(b"{"):
            raise ValueError("does not start with {")
        header = parse_json(text)
    except ValueError as error:
        raise _broken(file, f"its header {error}") from None
    header.pop("__metadata__", None)
    tensors = {name: _tensor_info(file, name, entry) for name, entry in header.items()}
    _check_layout(file, tensors, data_bytes=size - 8 - length)
    return tensors


def _tensor_info(file: Path, name: str, entry: object) -> TensorInfo:
    if not name.isprintable():
        raise _broken(file, f"tensor {shown(name)}: its name is not text")
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise _broken(file, f"tensor {shown(name)}: the header needs exactly dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in ITEM_BYTES:
        raise CheckpointError(
            f"{file}: tensor {shown(name)} is stored as {shown(dtype)}; choose a model stored as BF16, F16 or F32"
        )
    if not _are_counts(shape) or len(shape) > 8:
        raise _broken(file, f"tensor {shown(name)}: shape {shown(shape)} is not a list of counts")
    if not _are_counts(offsets, largest=2**63) or len(offsets) != 2:
        raise _broken(file, f"tensor {shown(name)}: data_offsets {shown(offsets)} are not two positions")
    return TensorInfo(file, dtype, tuple(shape), *offsets)


def _are_counts(values: object, largest: int = 2**31) -> bool:
    return isinstance(values, list) and all(type(value) is int and 0 <= value < largest for value in values)


def _check_layout(file: Path, tensors: dict[str, TensorInfo], data_bytes: int) -> None:
    """The tensors must fill the rest of the file exactly, each with the bytes that its shape needs."""
    position = 0
    for name, info in sorted(tensors.items(), key=lambda item: (item[1].begin, item[1].end)):
        if info.begin != position:
            problem = "overlaps another" if info.begin < position else "leaves a gap before it"
            raise _broken(file, f"tensor {shown(name)}: data_offsets [{info.begin}, {info.end}] {problem}")
        if info.end - info.begin != math.prod(info.shape) * ITEM_BYTES[info.dtype]:
            raise _broken(file, f"tensor {shown(name)}: {info.end - info.begin} bytes are not {_type(info)}")
        position = info.end
    if position != data_bytes:
        raise _broken(
            file, f"truncated or damaged: its tensors need {position} bytes, and it has {data_bytes}"
        )


def _type(info: TensorInfo) -> str:
    return f"{info.dtype} of shape {list(info.shape)}"


def _broken(file: Path, problem: str) -> CheckpointError:
    return CheckpointError(f"{file}: {problem}; download the file again")
