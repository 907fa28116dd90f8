"""The part of a model that one stage reads and holds, by the solution's `stage_layers`. Knows no arrays."""

from collections.abc import Sequence
from dataclasses import dataclass

from ...model.config import ModelConfig
from ...model.quantization import EMBEDDING
from ...model.quantized_head import HEAD
from ...solution_types import ServingPackage, Shard


@dataclass(frozen=True)
class StagePart:
    """What one of several stages holds of a model: whole weights of some layers. Rank 0 is the last stage.

    Args:
        names: the module `serving` of a solution.
        rank: from 0 to size - 1.
        size: number of stages.
    """

    names: ServingPackage
    rank: int
    size: int

    @property
    def stage(self) -> int:
        """From 0; rank 0 is the last one."""
        return (self.rank - 1) % self.size

    def config(self, whole: ModelConfig) -> ModelConfig:
        """The model's configuration: a stage finds its layers by their number among all."""
        return whole

    def holds(self, name: str, whole: ModelConfig) -> bool:
        """Whether this stage holds a weight.

        Raises:
            ValueError: there are more stages than layers.
        """
        layers = self.names.stage_layers(whole.num_hidden_layers, self.size, self.stage)
        is_last = self.stage == self.size - 1
        if name == EMBEDDING:
            return self.stage == 0 or (is_last and whole.tie_word_embeddings)
        if name == HEAD:
            return is_last
        parts = name.split(".")
        return parts[1] != "layers" or int(parts[2]) in layers

    def shard(self, name: str, shape: Sequence[int], whole: ModelConfig) -> Shard:
        """All of a weight that this stage holds."""
        return self.names.Shard()
