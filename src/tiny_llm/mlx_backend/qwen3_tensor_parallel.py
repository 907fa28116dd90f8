"""Qwen3 on several devices: each rank holds a part of every matrix, and all compute the same step (Week 3). Given."""

from collections.abc import Callable
from typing import Any

import mlx.core as mx

from tiny_llm_common.layer_weights import Checkpoint, ModelShape

from ..groups import Group, PartialSums
from ..serving.parallel.shards import vocabulary_of
from .qwen3_week2 import dense_mlp
from .qwen3_week3 import Qwen3ModelWeek3
from .tensor_parallel import RowParallelLinear, VocabParallelEmbedding, gather_logits


class Qwen3ModelTensorParallel(Qwen3ModelWeek3):
    """One rank's part of `Qwen3ModelWeek3`: some heads of every layer, some hidden numbers of its MLP, some token ids.

    A layer has two sums over the ranks, after attention and after the MLP. The residual stream, the norms and the
    logits are whole, and the same on every rank.

    Args:
        checkpoint: this rank's part of the weights, see `shard_of`; its configuration counts this rank's heads and
            hidden numbers, and the whole vocabulary.
        attention, make_mlp: see `Qwen3ModelWeek3`.
        group: all ranks.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        attention: str = "simple",
        make_mlp: Callable[[ModelShape, dict[str, Any]], Callable] = dense_mlp,
        *,
        group: Group,
    ):
        self.group = group
        self.ids = vocabulary_of(checkpoint.config.vocab_size, group.rank, group.size)
        super().__init__(PartialSums(checkpoint, group, RowParallelLinear.of), attention, make_mlp)
        rows: Any = self.embedding  # of this rank's ids
        self.embedding = VocabParallelEmbedding(rows, self.ids, group)

    @property
    def vocab_rows(self) -> int:
        """Rows of the embedding and of the head that this rank holds."""
        return len(self.ids)

    def head(self, x: mx.array) -> mx.array:
        """Logits of every token of the vocabulary: (B, K, E) to (B, K, V), the same on every rank. Given."""
        return gather_logits(super().head(x), self.config.vocab_size, self.group)
