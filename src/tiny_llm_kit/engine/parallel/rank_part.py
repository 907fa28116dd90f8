"""The part of a model that one rank reads and holds, by the solution's `shard_of`. Knows no arrays."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ...model.config import ModelConfig
from ...solution_types import ServingPackage, Shard


@dataclass(frozen=True)
class RankPart:
    """What one of several ranks holds of a model.

    Args:
        names: the module `serving` of a solution.
        rank: from 0 to size - 1.
        size: number of ranks.
    """

    names: ServingPackage
    rank: int
    size: int

    def config(self, whole: ModelConfig) -> ModelConfig:
        """The model's configuration with the heads and hidden numbers of this rank, and the whole vocabulary.

        Raises:
            ValueError: the ranks would not get equal shares.
        """
        self.names.check_tensor_parallel(whole, self.size)
        kv_heads = self.names.kv_heads_of(whole.num_key_value_heads, self.rank, self.size)
        return replace(
            whole,
            num_attention_heads=whole.num_attention_heads // self.size,
            num_key_value_heads=len(kv_heads),
            intermediate_size=whole.intermediate_size // self.size,
        )

    def holds(self, name: str, whole: ModelConfig) -> bool:
        """Whether this rank holds some of a weight: it does of every one."""
        return True

    def shard(self, name: str, shape: Sequence[int], whole: ModelConfig) -> Shard:
        """Which rows or columns of a weight this rank holds; `shape` is the weight's own."""
        return self.names.shard_of(name, shape, self.rank, self.size, whole.num_key_value_heads)


def index_of(shard: Shard, shape: Sequence[int]) -> tuple[slice, ...]:
    """The index of a shard in an array of this shape."""
    axes = [shard.rows, shard.columns][: len(shape)]
    return tuple(slice(None) if axis is None else slice(axis.start, axis.stop) for axis in axes)
