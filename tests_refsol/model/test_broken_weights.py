"""Weights that are broken or hostile: one line names the file, the tensor and the fix, on both ports."""

import json
import os
import re
import struct
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tiny_llm_engine.loading import load_checkpoint
from tiny_llm_engine.machine.installation import installed_backends
from tiny_llm_engine.models.files import CheckpointError

BROKEN = []  # (a function that breaks a correct folder, what the reader then says of it)
REFUSED = (
    "{weights}: broken, or not safetensors ('header: *); download the file again"  # * is the library's reason
)


def broken(message: str):
    """Registers a way to break a folder. A message names its files by `paths`; a * in it stands for any words."""

    def register(function):
        BROKEN.append(pytest.param(function, message, id=function.__name__))
        return function

    return register


def paths(folder: Path) -> dict[str, Path]:
    """What the placeholders of a message stand for."""
    weights, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    return {"folder": folder, "weights": weights, "index": index}


def cut(folder: Path, size: int) -> None:
    """Shortens the safetensors file."""
    os.truncate(folder / "model.safetensors", size)


def patch(folder: Path, position: int, data: bytes) -> None:
    """Overwrites bytes of the safetensors file."""
    with (folder / "model.safetensors").open("r+b") as stream:
        stream.seek(position)
        stream.write(data)


def rewrite(folder: Path, change) -> None:
    """Changes the text of the safetensors header and keeps the data."""
    file = folder / "model.safetensors"
    content = file.read_bytes()
    end = 8 + int.from_bytes(content[:8], "little")
    header = change(content[8:end].decode()).encode()
    file.write_bytes(struct.pack("<Q", len(header)) + header + content[end:])


def exchange(folder: Path, old: str, new: str) -> None:
    """Writes one text for another in the safetensors header."""
    rewrite(folder, lambda text: text.replace(old, new))


def shard(folder: Path, changes: dict | None = None) -> dict[str, Path]:
    """Turns the folder's file into one shard per tensor, with `changes` made to the index."""
    whole = folder / "model.safetensors"
    tensors = load_file(whole)
    names = {tensor: f"model-{number}.safetensors" for number, tensor in enumerate(sorted(tensors), start=1)}
    for tensor, name in names.items():
        save_file({tensor: tensors[tensor]}, folder / name)
    whole.unlink()
    listed = {tensor: name for tensor, name in (names | (changes or {})).items() if name is not ...}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": listed}), encoding="utf-8")
    return {tensor: folder / name for tensor, name in names.items()}


@broken(
    "{folder}/pytorch_model.bin: a pickle, which may run any code when it is loaded, so it was not opened: "
    "convert it where you trust it (transformers: from_pretrained(old_folder).save_pretrained(new_folder))"
)
def pickle(folder, edit):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


@broken("{weights}: not found; check the path, or choose a model with safetensors weights")
def no_weights(folder, edit):
    (folder / "model.safetensors").unlink()


WHOLE_FILE_REFUSED = {
    "truncated": lambda folder: cut(folder, 1000),
    "cut_in_the_header": lambda folder: cut(folder, 60),
    "empty_file": lambda folder: cut(folder, 0),
    "absurd_header_length": lambda folder: patch(folder, 0, struct.pack("<Q", 2**60)),
    "header_is_not_json": lambda folder: patch(folder, 8, b"{{"),
    "header_is_not_text": lambda folder: patch(folder, 10, b"\xff"),
    "header_with_the_same_name_twice": lambda folder: exchange(folder, "model.norm", "model.embed_tokens"),
    "offsets_overlap": lambda folder: exchange(folder, "[40960,41088]", "[40832,41088]"),
    "offsets_past_the_end": lambda folder: exchange(folder, "[40960,41088]", "[40960,99999]"),
    "a_gap_between_two_tensors": lambda folder: exchange(folder, "[40960,41088]", "[40964,41092]"),
    "shape_of_other_size": lambda folder: exchange(folder, "[32]", "[33]"),
    "negative_dimension": lambda folder: exchange(folder, "[320,32]", "[-320,-32]"),
    "a_name_that_is_not_unicode": lambda folder: exchange(folder, "model.embed", "\\ud800"),
}
BROKEN += [
    pytest.param(lambda folder, edit, way=way: way(folder), REFUSED, id=name)
    for name, way in WHOLE_FILE_REFUSED.items()
]


@broken("{weights}: tensor 'model.norm.weight' is stored as 'I64'; choose a model stored as BF16, F16 or F32")
def integer_weights(folder, edit):
    save_file({"model.norm.weight": np.ones(32, np.int64)}, folder / "model.safetensors")


@broken(
    "{weights}: tensor 'model.norm.weight' is quantised (U32), but config.json has no quantization; download "
    "both files again"
)
def words_without_quantization(folder, edit):
    save_file({"model.norm.weight": np.ones(32, np.uint32)}, folder / "model.safetensors")


@broken(REFUSED)
def bytes_that_belong_to_no_tensor(folder, edit):
    with (folder / "model.safetensors").open("ab") as stream:
        stream.write(b"more")


@broken(REFUSED.replace("*", "*`F33`*"))
def a_dtype_that_nobody_knows(folder, edit):
    rewrite(folder, lambda text: text.replace('"F32"', '"F33"', 1))


@broken(
    "{weights}: tensor 'extra': shape [0, 1099511627776] is not that of a weight; download the file again"
)
def no_numbers_and_a_size_that_overflows(folder, edit):
    entry = ',"extra":{"dtype":"F32","shape":[0,1099511627776],"data_offsets":[41088,41088]}}'
    rewrite(folder, lambda text: text.rstrip().removesuffix("}") + entry)


@broken(
    "{weights}: tensor 'model.norm.weight': shape [1, 1, * is not that of a weight; download the file again"
)
def more_axes_than_any_weight(folder, edit):
    exchange(folder, "[32]", f"[{','.join(['1'] * 900)},32]")


@broken(
    "{folder}/model-2.safetensors: shard not found, but model.safetensors.index.json names it; download the "
    "model again"
)
def shard_missing(folder, edit):
    shard(folder)["model.norm.weight"].unlink()


@broken(
    "{index}: weight_map names '../secret.safetensors', which is not a safetensors file of this folder; "
    "download the file again"
)
def shard_outside_of_the_folder(folder, edit):
    shard(folder, {"model.norm.weight": "../secret.safetensors"})


@broken("{index}: tensor 'lm_head.weight' is not in model-1.safetensors; download the file again")
def tensor_not_in_its_shard(folder, edit):
    shard(folder, {"lm_head.weight": "model-1.safetensors"})


@broken("{folder}: tensor 'model.norm.weight' is missing; download the model again")
def tensor_of_a_shard_left_out(folder, edit):
    shard(folder, {"model.norm.weight": ...})


@broken("{index}: tensor 'model.norm.weight' of model-1.safetensors is not listed; download the file again")
def tensor_not_in_the_index(folder, edit):
    first, second = shard(folder, {"model.norm.weight": ...}).values()
    save_file(load_file(first) | load_file(second), first)


@broken(
    "{folder}/model-2.safetensors: tensor 'model.norm.weight' is also in model-1.safetensors; download the "
    "file again"
)
def tensor_in_two_shards(folder, edit):
    first, second = shard(folder).values()
    save_file(load_file(first) | load_file(second), first)


@broken("{index}: weight_map is missing or not an object; download the file again")
def index_without_a_map(folder, edit):
    shard(folder)
    edit("model.safetensors.index.json", weight_map=...)


@broken(
    "{weights}: tensor 'model.norm.weight' has shape (64,), but config.json asks for (32,); one of the two is"
    " of another model: download both again"
)
def wrong_shape(folder, edit):
    save_file({"model.norm.weight": np.ones(64, np.float32)}, folder / "model.safetensors")


@broken("{folder}: tensor 'model.norm.weight' is missing; download the model again")
def tensor_missing(folder, edit):
    save_file({"model.embed_tokens.weight": np.ones((320, 32), np.float32)}, folder / "model.safetensors")


def spoil(folder: Path, number: float, dtype=np.float32) -> None:
    """Writes one number into the middle of a tensor."""
    tensors = load_file(folder / "model.safetensors")
    tensors["model.norm.weight"][17] = number
    save_file({name: array.astype(dtype) for name, array in tensors.items()}, folder / "model.safetensors")


@broken("{weights}: tensor 'model.norm.weight' holds NaN or infinity; download the model again")
def weight_that_is_nan(folder, edit):
    spoil(folder, np.nan)


@broken("{weights}: tensor 'model.norm.weight' holds NaN or infinity; download the model again")
def weight_that_is_infinite(folder, edit):
    spoil(folder, -np.inf, np.float16)


@pytest.mark.parametrize("backend", installed_backends())
def test_weights_too_large_for_float16_are_named(folder, backend):
    """Converted, they would be infinite."""
    spoil(folder, -7e4)
    load_checkpoint(folder, backend, "cpu", "bfloat16")
    with pytest.raises(
        CheckpointError, match=r"'model\.norm\.weight' holds 70000, and float16 ends at 65504"
    ):
        load_checkpoint(folder, backend, "cpu", "float16")


@pytest.mark.parametrize("backend", installed_backends())
@pytest.mark.parametrize(("break_it", "message"), BROKEN)
def test_a_broken_folder_gets_one_line(folder, edit, break_it, message, backend):
    break_it(folder, edit)
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(folder, backend, device="cpu").weight("model.norm.weight", 32)
    line = str(caught.value)
    expected = re.escape(message.format(**paths(folder))).replace(r"\*", ".+")
    assert re.fullmatch(expected, line), line
    assert "\n" not in line
