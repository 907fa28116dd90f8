"""The tensors of a model's files that its layers read, and a line about the others. Knows no arrays."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from .config import ModelConfig
from .expert_names import model_name, place_of
from .files import CheckpointError, shown
from .output_head import HEAD
from .quantized_tensors import parts
from .safetensors_folder import DTYPES, TensorInfo, broken
from .weight_shapes import weight_shapes

# Buffers of older files: what they hold is computed anew.
BUFFER = re.compile(r"(.+\.)?(rotary_emb\.inv_freq|position_ids|(self_)?attn\.(masked_)?bias)")
NAMED = 3  # in the line


def used_tensors(headers: Mapping[str, TensorInfo], config: ModelConfig) -> dict[str, TensorInfo]:
    """The tensors that a model of this shape reads, scales and biases of quantised weights included.

    Raises:
        CheckpointError: one of them is empty, or has a type that no engine reads.
    """
    # A tied model has no head, but its files may.
    asked = {*weight_shapes(config, min(config.num_hidden_layers, len(headers))), HEAD}
    places = {name: place_of(name) for name in headers}
    names = {name for name, at in places.items() if (at.stack if at else model_name(name)) in asked}
    quantized = (name for name in names if headers[name].dtype == "U32")
    names |= {part for name in quantized for part in parts(name)}
    used = {name: info for name, info in headers.items() if name in names}
    for name, info in used.items():
        if info.dtype not in DTYPES:
            raise CheckpointError(
                f"{info.file}: tensor {shown(name)} is stored as {info.dtype!r}; choose a model stored as BF16, F16 or "
                "F32"
            )
        if 0 in info.shape:
            raise broken(
                info.file, f"tensor {shown(name)}: shape {shown(list(info.shape))} is not that of a weight"
            )
    return used


def unused_line(path: Path, names: Iterable[str]) -> list[str]:
    """A line about tensors that no layer reads, without buffers; nothing if there are no others.

    With them the model may have answered otherwise.
    """
    unused = [name for name in names if not BUFFER.fullmatch(name)]
    if not unused:
        return []
    more = f" and {len(unused) - NAMED} more" * (len(unused) > NAMED)
    named = ", ".join(map(shown, unused[:NAMED])) + more
    return [f"{path}: not used, because config.json describes no layer that reads them: {named}"]
