"""Reads parts of a model's tensors: of a mapped file only the bytes of this rank's rows or columns are copied."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tiny_llm_engine.models.config import ModelConfig
from tiny_llm_engine.models.formats import ModelFiles
from tiny_llm_engine.models.quantized_tensors import parts
from tiny_llm_engine.models.safetensors_folder import TensorInfo
from tiny_llm_engine.solutions.backend import Backend
from tiny_llm_engine.solutions.solution_types import Array, Shard


class PartsOfFiles:
    """The tensors of a model's files, as far as a rank holds them. `Stored` for `read_weights`.

    Args:
        part: which part is this rank's, a `RankPart` or a `StagePart`.

    Attributes:
        headers: of the tensors, with the shapes of the parts.
        bytes_read: so far.

    Raises:
        ValueError: the model cannot be divided like this.
    """

    def __init__(
        self,
        backend_module: Backend,
        files: ModelFiles,
        headers: Mapping[str, TensorInfo],
        config: ModelConfig,
        part: Any,
    ):
        self.backend_module, self._files, self._whole, self.bytes_read = backend_module, files, headers, 0
        part.config(config)  # checks that the model can be divided
        self._shards = shards_of(headers, config, part)
        self.headers = {name: _local(info, self._shards[name]) for name, info in headers.items()}

    def pop(self, key: str, /) -> Array:
        """A tensor's part as an array on the CPU, in its stored type."""
        info, shard = self._whole[key], self._shards[key]
        part = np.ascontiguousarray(self._files.numbers(key)[index_of(shard, info.shape)])
        self.bytes_read += part.nbytes
        return self.backend_module.from_stored(np.array(part), info.dtype)


def shards_of(headers: Mapping[str, TensorInfo], config: ModelConfig, part: Any) -> dict[str, Shard]:
    """Each tensor's shard; those of a quantised weight's three tensors belong to the same numbers.

    Raises:
        ValueError: a rank's columns of a quantised weight would end within a group.
    """
    shards = {name: part.shard(name, info.shape, config) for name, info in headers.items()}
    for name in (name for name, info in headers.items() if info.dtype == "U32"):
        shards.update(quantized_shards(name, headers[name].shape, config, part))
    return shards


def quantized_shards(name: str, shape: tuple[int, ...], config: ModelConfig, part: Any) -> dict[str, Shard]:
    """The shards of words, scales and biases of a quantised weight, by name; `shape` is that of its words."""
    assert config.quantization is not None  # `check_quantized_parts` has accepted the names of these parts
    quantization = config.quantization.of(name)
    per_word, group = 32 // quantization.bits, quantization.group_size
    whole = part.shard(name, (shape[0], shape[1] * per_word), config)
    if whole.columns is not None and (whole.columns.start % group or whole.columns.stop % group):
        raise ValueError(
            f"tensor_parallel_size is {part.size}: {name} is quantised in groups of {group} columns, and a rank would "
            f"get {len(whole.columns)} of them: choose fewer ranks"
        )
    words, *constants = parts(name)
    return {words: _scaled(whole, per_word), **{constant: _scaled(whole, group) for constant in constants}}


def _scaled(shard: Shard, per_column: int) -> Shard:
    """The shard of an array with one column for `per_column` columns of the matrix."""
    if shard.columns is None:
        return shard
    return replace(shard, columns=range(shard.columns.start // per_column, shard.columns.stop // per_column))


def _local(info: TensorInfo, shard: Shard) -> TensorInfo:
    axes = (shard.rows, shard.columns)
    sizes = (size if axis is None else len(axis) for size, axis in zip(info.shape, axes, strict=False))
    return replace(info, shape=tuple(sizes))


def index_of(shard: Shard, shape: Sequence[int]) -> tuple[slice, ...]:
    """The index of a shard in an array of this shape."""
    axes = [shard.rows, shard.columns][: len(shape)]
    return tuple(slice(None) if axis is None else slice(axis.start, axis.stop) for axis in axes)
