"""A model in a folder with Hugging Face's layout."""

import json
import math
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

import numpy as np
from safetensors import SafetensorError

from ..solutions.solution_types import Array
from .config import ModelConfig, read_config
from .formats import ArrayReader, Stored
from .safetensors_folder import TensorInfo, read_headers, refused
from .tokenization import Tokenizer, folder_tokenizer

# BF16 has no type in NumPy: its bits pass through as integers.
NUMPY_TYPES = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16, "U32": np.uint32}


class ModelFolder:
    """A folder with `config.json`, `tokenizer.json` and safetensors files."""

    def __init__(self, path: Path):
        self.path = self.folder = path
        self._maps: dict[Path, tuple[np.memmap, dict[str, int]]] = {}

    def config(self) -> ModelConfig:
        return read_config(self.path)

    def tokenizer(self) -> Tokenizer:
        return folder_tokenizer(self.path)

    def headers(self) -> dict[str, TensorInfo]:
        return self._headers

    @cached_property
    def _headers(self) -> dict[str, TensorInfo]:
        return read_headers(self.path)

    def numbers(self, name: str) -> np.ndarray:
        info = self._headers[name]
        data, starts = self._map(info.file)
        stop = starts[name] + math.prod(info.shape) * np.dtype(NUMPY_TYPES[info.dtype]).itemsize
        return data[starts[name] : stop].view(NUMPY_TYPES[info.dtype]).reshape(info.shape)

    def _map(self, file: Path) -> tuple[np.memmap, dict[str, int]]:
        """The bytes of a file, and where each tensor begins."""
        if file not in self._maps:
            data = np.memmap(file, np.uint8, "r")
            length = int.from_bytes(bytes(data[:8]), "little")
            header = json.loads(bytes(data[8 : 8 + length]))
            starts = {
                name: 8 + length + entry["data_offsets"][0]
                for name, entry in header.items()
                if name != "__metadata__"
            }
            self._maps[file] = data, starts
        return self._maps[file]

    def arrays(self, backend: ArrayReader, headers: Mapping[str, TensorInfo]) -> Stored:
        stored: dict[str, Array] = {}
        for file in {info.file: None for info in headers.values()}:
            try:
                stored.update(backend.open_safetensors(file))
            except (SafetensorError, RuntimeError, ValueError, OSError) as error:
                # MLX's reader may reject what safetensors accepts.
                raise refused(file, error) from None
        return stored

    def close(self) -> None:
        self._maps.clear()
