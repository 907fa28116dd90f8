"""A model in a GGUF file, with the methods of `ModelFiles`. Imported when a file is opened: `gguf` takes a while."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from tiny_llm_engine.models.config import ModelConfig
from tiny_llm_engine.models.files import CheckpointError
from tiny_llm_engine.models.formats import ArrayReader
from tiny_llm_engine.models.quantized_tensors import weight_of
from tiny_llm_engine.models.safetensors_folder import TensorInfo
from tiny_llm_engine.models.tokenization import Tokenizer
from tiny_llm_engine.solutions.solution_types import Array

from .gguf_config import gguf_config, quantization_of, stays_quantized
from .gguf_file import GgufTensor, forget_opened, open_gguf
from .gguf_tensors import headers_of, interleaved_rows, numbers_of, weights_of
from .gguf_tokenizer import gguf_tokenizer


class GgufModel:
    """A model in a GGUF file; several files, if it is split.

    Args:
        path: of the file, or of the first one.

    Raises:
        CheckpointError: it is not a GGUF file, or a broken one.
    """

    def __init__(self, path: Path):
        self.path, self.folder, self._file = path, path.parent, open_gguf(path)

    def config(self) -> ModelConfig:
        return replace(self._plain_config, quantization=quantization_of(self._weights))

    def tokenizer(self) -> Tokenizer:
        tokenizer = gguf_tokenizer(self._file.fields, self.path)
        rows = self._plain_config.vocab_size
        if tokenizer.vocab_size > rows:  # their ids would fail much later, or on a GPU read other memory
            raise CheckpointError(
                f"{self.path}: has {tokenizer.vocab_size} tokens, and its table {rows} rows; download the file again"
            )
        return tokenizer

    def headers(self) -> dict[str, TensorInfo]:
        return headers_of(self._weights)

    def numbers(self, name: str) -> np.ndarray:
        weight, part = weight_of(name, self._weights)
        tensor = self._weights[weight]
        part = part if stays_quantized(weight, tensor) else "floats"
        return numbers_of(tensor, part, self._rows(weight, tensor))

    def arrays(self, backend: ArrayReader, headers: Mapping[str, TensorInfo]) -> "Arrays":
        return Arrays(self, backend, headers)

    def close(self) -> None:
        forget_opened()

    @cached_property
    def _plain_config(self) -> ModelConfig:
        return gguf_config(self._file)

    @cached_property
    def _weights(self) -> dict[str, GgufTensor]:
        return weights_of(self._file, self._plain_config)

    def _rows(self, name: str, tensor: GgufTensor) -> np.ndarray | None:
        """The order of a tensor's rows, where it is not that of the file."""
        heads = {
            "q_proj": self._plain_config.num_attention_heads,
            "k_proj": self._plain_config.num_key_value_heads,
        }
        projection = name.split(".")[-2]
        if self._file.fields["general.architecture"] != "llama" or projection not in heads:
            return None
        return interleaved_rows(tensor.shape[0], heads[projection])


@dataclass(frozen=True)
class Arrays:
    """`Stored` of a GGUF file: each array is made when it is taken."""

    model: GgufModel
    backend: ArrayReader
    headers: Mapping[str, TensorInfo]

    def pop(self, key: str, /) -> Array:
        return self.backend.from_stored(np.array(self.model.numbers(key)), self.headers[key].dtype)
