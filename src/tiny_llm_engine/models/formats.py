"""What a loader asks of a model's files, whatever their format, and the formats besides folders."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:  # commands import this before they know that they need NumPy
    import numpy as np

    from ..solutions.solution_types import Array
    from .config import ModelConfig
    from .safetensors_folder import TensorInfo
    from .tokenization import Tokenizer


class Stored(Protocol):
    """The tensors of a model as they are stored, each taken once. A dict is one."""

    def pop(self, key: str, /) -> Array: ...


class ArrayReader(Protocol):
    """The part of a `Backend` that makes arrays of what is stored."""

    def open_safetensors(self, file: Path, /) -> Mapping[str, Array]: ...

    def from_stored(self, numbers: np.ndarray, dtype: str, /) -> Array: ...


class ModelFiles(Protocol):
    """The files of a model.

    Attributes:
        path: the folder, or the file.
        folder: the folder, or that of the file.
    """

    path: Path
    folder: Path

    def config(self) -> ModelConfig:
        """The shape of the model. Raises CheckpointError if it cannot be used, as each method does."""
        ...

    def tokenizer(self) -> Tokenizer: ...

    def headers(self) -> dict[str, TensorInfo]:
        """All tensors by name; a quantised weight has three, see `quantized_tensors`."""
        ...

    def numbers(self, name: str) -> np.ndarray:
        """A tensor of the type and shape in its header; BF16 as uint16."""
        ...

    def arrays(self, backend: ArrayReader, headers: Mapping[str, TensorInfo]) -> Stored:
        """These tensors as arrays of a `Backend`; none is read yet."""
        ...

    def close(self) -> None:
        """Lets go of the files that are in memory, when all has been read; a further call opens them again."""


# What opens a file, by its suffix. An extension adds to it.
FORMATS: dict[str, Callable[[Path], ModelFiles]] = {}
