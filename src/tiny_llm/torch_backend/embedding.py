"""The embedding table: turns token ids into vectors, and vectors into a score for every token."""

from typing import Any

import torch

from .basics import linear


class Embedding:
    """A lookup table with one row per token of the vocabulary.

    Args:
        vocab_size: V, the number of rows.
        embedding_dim: E, the size of a row.
        weight: (V, E), stored without a copy.

    Raises:
        ValueError: the weight's shape is not (V, E).
    """

    def __init__(self, vocab_size: int, embedding_dim: int, weight: torch.Tensor):
        if tuple(weight.shape) != (vocab_size, embedding_dim):
            shape = tuple(weight.shape)
            raise ValueError(f"the table has shape {shape}, expected ({vocab_size}, {embedding_dim})")
        self.vocab_size, self.embedding_dim, self.weight = vocab_size, embedding_dim, weight

    def __call__(self, ids: torch.Tensor) -> torch.Tensor:
        """
        Args:
            ids: (...) integers from 0 to V - 1.

        Returns:
            (..., E), the rows of the table, in its type.
        """
        ids = ids.to(self.weight.device)  # they come from the host; on an accelerator this is the only copy
        # TASK 1.5.1: look up rows. No arithmetic: the numbers of the table come out unchanged.
        raise NotImplementedError("week 1 day 5 task 1: Embedding.__call__")

    def as_linear(self, x: torch.Tensor) -> torch.Tensor:
        """The score of every token for `x`: the output head of a model with tied embeddings.

        Args:
            x: (..., E).

        Returns:
            (..., V) logits, in x's type.
        """
        # TASK 1.5.2: take the dot product with every row. The table has one row per output, as any linear layer.
        raise NotImplementedError("week 1 day 5 task 2: Embedding.as_linear")


class PackedEmbedding:
    """`Embedding` for a quantised or a packed table, which looks up its own rows. Given.

    Args:
        vocab_size: V, the number of rows.
        embedding_dim: E, the size of a row.
        weight: a linear layer (V, E) with `rows`: (...) ids to (..., E).

    Raises:
        ValueError: the weight's shape is not (V, E).
    """

    def __init__(self, vocab_size: int, embedding_dim: int, weight: Any):
        if weight.shape != (vocab_size, embedding_dim):
            raise ValueError(f"the table has shape {weight.shape}, expected ({vocab_size}, {embedding_dim})")
        self.vocab_size, self.embedding_dim, self.weight = vocab_size, embedding_dim, weight

    def __call__(self, ids: torch.Tensor) -> torch.Tensor:
        """See `Embedding`: (...) ids to (..., E) rows, in `weight.dtype`."""
        return self.weight.rows(ids)

    def as_linear(self, x: torch.Tensor) -> torch.Tensor:
        """See `Embedding`: (..., E) to (..., V) logits, in x's type."""
        return self.weight(x)


AnyEmbedding = Embedding | PackedEmbedding


def embedding_of(vocab_size: int, embedding_dim: int, weight: Any) -> AnyEmbedding:
    """The embedding of a table: an array, or a weight that looks up its own rows. Given."""
    kind: Any = PackedEmbedding if callable(weight) else Embedding
    return kind(vocab_size, embedding_dim, weight)
