"""A model's weights in memory, in the same class for both ports."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ..solutions.solution_types import Array
from .config import ModelConfig
from .files import CheckpointError, shown


@dataclass(frozen=True)
class Checkpoint:
    """A model's configuration and its weights by Hugging Face name.

    Args:
        config: the shape of the model; with `config.tie_word_embeddings` the head is the embedding.
        weights: name -> array of this port, all of one type and on one device; if a `WeightQuantizer` loaded the
            checkpoint, also `QuantizedWeights` of the solution. A test may pass a dict.
        folder: folder of the weights, for error messages.
        files: name -> file name in `folder`, for error messages.
        bytes_read: of the files, by this process.
    """

    config: ModelConfig
    weights: dict[str, Array]
    folder: Path | None = None
    files: Mapping[str, str] = field(default_factory=dict)
    bytes_read: int = 0

    def weight(self, name: str, *shape: int) -> Array:
        """The array called `name`, which must have this shape.

        Raises:
            CheckpointError: it is absent or has a different shape.
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
        return str(self.folder / self.files.get(name or "", ""))
