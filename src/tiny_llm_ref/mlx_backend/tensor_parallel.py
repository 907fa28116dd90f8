"""Tensor parallelism: layers whose weights are divided among ranks (Megatron-LM, Shoeybi et al., 2019)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from tiny_llm_engine.arrays.layers import Linear
from tiny_llm_engine.models.layer_weights import Checkpoint, ModelShape
from tiny_llm_extensions.parallel.groups import Group, PartialSums

from ..serving.parallel.shards import ROW_PARALLEL, vocabulary_of
from .basics import AnyEmbedding, linear_layer
from .qwen3_week2 import dense_mlp
from .qwen3_week3 import Qwen3ModelWeek3


def sum_over_ranks(partial: mx.array, group: Group, bias: mx.array | None = None) -> mx.array:
    """A row-parallel layer's output, from the product of this rank's columns.

    Args:
        partial: (..., O), this rank's part of the sum over all inputs.
        group: the ranks with the other parts.
        bias: (O,) or None; every rank has it.

    Returns:
        (..., O), the same on every rank, in the type of `partial`.
    """
    # TASK 3.7.3: one sum over the ranks; what every rank has in full comes after it.
    out = group.all_reduce(partial)
    return out if bias is None else out + bias


@dataclass(frozen=True, eq=False)
class RowParallelLinear:
    """A rank's columns of a matrix (O, I): its products are parts of a sum over the ranks. Given.

    Args:
        layer: (O, I / size).
        group: the ranks that hold the other columns.
    """

    layer: Linear
    group: Group

    @classmethod
    def of(cls, weight: Any, group: Group) -> "RowParallelLinear":
        """The layer of a weight, as `linear_layer` takes it."""
        return cls(linear_layer(weight), group)

    @property
    def shape(self) -> tuple[int, int]:
        """Of this rank's part."""
        return self.layer.shape

    @property
    def nbytes(self) -> int:
        return self.layer.nbytes

    def __call__(self, x: mx.array) -> mx.array:
        """This rank's x (..., I / size) to the whole (..., O)."""
        return sum_over_ranks(self.layer(x), self.group)


class VocabParallelEmbedding:
    """An embedding table whose rows are divided among ranks.

    Args:
        embedding: of this rank's token ids.
        ids: these ids, from `vocabulary_of`.
        group: the ranks with the other rows.
    """

    def __init__(self, embedding: AnyEmbedding, ids: range, group: Group):
        self.embedding, self.ids, self.group = embedding, ids, group

    @property
    def weight(self):
        """This rank's rows."""
        return self.embedding.weight

    def __call__(self, ids: mx.array) -> mx.array:
        """
        Args:
            ids: (...) token ids, the same on every rank.

        Returns:
            (..., E), the same on every rank, in the type of the table.
        """
        # TASK 3.7.4: this rank's rows where it has them, zeros elsewhere, and the sum over the ranks.
        # An id of another rank is not an index here: below 0 it would count from the end of the table.
        # No `if` on ids: their values are on the device, and reading them would wait for it.
        local = ids - self.ids.start
        mine = (local >= 0) & (local < len(self.ids))
        rows = self.embedding(mx.where(mine, local, 0))
        return self.group.all_reduce(mx.where(mine[..., None], rows, 0))


def gather_logits(logits: mx.array, vocab_size: int, group: Group) -> mx.array:
    """Every token's logit, from those that the ranks have computed.

    Args:
        logits: (..., n), of this rank's token ids.
        vocab_size: V.
        group: the ranks with the others, from `vocabulary_of`; the last ones may have fewer than V / size.

    Returns:
        (..., V), the same on every rank.
    """
    # TASK 3.7.5: pad to the largest part, gather (size, ..., share), put the parts end to end, cut the padding off.
    # A collective call takes arrays of one shape: every rank has to give as many logits as the first one.
    share = -(-vocab_size // group.size)
    padded = mx.pad(logits, [(0, 0)] * (logits.ndim - 1) + [(0, share - logits.shape[-1])])
    parts = group.all_gather(padded)  # (size, ..., share)
    return mx.flatten(mx.moveaxis(parts, 0, -2), -2)[..., :vocab_size]


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
        super().__init__(
            PartialSums(checkpoint, group, ROW_PARALLEL, RowParallelLinear.of), attention, make_mlp
        )
        rows: Any = self.embedding  # of this rank's ids
        self.embedding = VocabParallelEmbedding(rows, self.ids, group)

    @property
    def vocab_rows(self) -> int:
        """Rows of the embedding and of the head that this rank holds."""
        return len(self.ids)

    def head(self, x: mx.array) -> mx.array:
        """Logits of every token of the vocabulary: (B, K, E) to (B, K, V), the same on every rank. Given."""
        return gather_logits(super().head(x), self.config.vocab_size, self.group)
