"""The embedding table: turns token ids into vectors, and vectors into a score for every token."""

import mlx.core as mx

from .basics import linear
from .quantize import dequantize_weights
from .quantized_weights import PreparedTable, QuantizedWeights, quantized_linear


class Embedding:
    """A lookup table with one row per token of the vocabulary.

    Args:
        vocab_size: V, the number of rows.
        embedding_dim: E, the size of a row.
        weight: (V, E), stored without a copy.

    Raises:
        ValueError: the weight's shape is not (V, E).
    """

    def __init__(self, vocab_size: int, embedding_dim: int, weight: mx.array):
        if tuple(weight.shape) != (vocab_size, embedding_dim):
            shape = tuple(weight.shape)
            raise ValueError(f"the table has shape {shape}, expected ({vocab_size}, {embedding_dim})")
        self.vocab_size, self.embedding_dim, self.weight = vocab_size, embedding_dim, weight

    def __call__(self, ids: mx.array) -> mx.array:
        """
        Args:
            ids: (...) integers from 0 to V - 1.

        Returns:
            (..., E), the rows of the table, in its type.
        """
        # TASK 1.5.1: look up rows. No arithmetic: the numbers of the table come out unchanged.
        return self.weight[ids]

    def as_linear(self, x: mx.array) -> mx.array:
        """The score of every token for `x`: the output head of a model with tied embeddings.

        Args:
            x: (..., E).

        Returns:
            (..., V) logits, in x's type.
        """
        # TASK 1.5.2: take the dot product with every row. The table has one row per output, as any linear layer.
        return linear(x, self.weight)


class QuantizedEmbedding:
    """`Embedding` for a quantised table: dequantises only the rows it looks up. Given.

    Args:
        vocab_size: V, the number of rows.
        embedding_dim: E, the size of a row.
        weight: a quantised (V, E) matrix that still has its words, or a `PreparedTable`; other forms do not allow
            looking up rows.

    Raises:
        ValueError: the weight's shape is not (V, E), or its rows cannot be looked up.
    """

    def __init__(self, vocab_size: int, embedding_dim: int, weight: QuantizedWeights):
        if weight.shape != (vocab_size, embedding_dim):
            shape = weight.shape
            raise ValueError(f"the table has shape {shape}, expected ({vocab_size}, {embedding_dim})")
        if weight.weight is None and not isinstance(weight.prepared, PreparedTable):
            raise ValueError(
                "the table has no words to pick rows from: prepare it in the form 'words' or 'both'"
            )
        self.vocab_size, self.embedding_dim, self.weight = vocab_size, embedding_dim, weight

    def __call__(self, ids: mx.array) -> mx.array:
        """See `Embedding`: (...) ids to (..., E) rows, in `weight.dtype`."""
        if self.weight.weight is None and isinstance(self.weight.prepared, PreparedTable):
            return self.weight.prepared.rows(ids)
        w = self.weight
        words, scales, biases = (part[ids] for part in (w.parts[0], *w.wide_constants))
        return dequantize_weights(words, scales, biases, w.group_size, w.bits).astype(w.dtype)

    def as_linear(self, x: mx.array) -> mx.array:
        """See `Embedding`: (..., E) to (..., V) logits, in x's type."""
        return quantized_linear(x, self.weight)


def embedding_of(
    vocab_size: int, embedding_dim: int, weight: mx.array | QuantizedWeights
) -> Embedding | QuantizedEmbedding:
    """The embedding for a plain or a quantised table. Given."""
    if isinstance(weight, QuantizedWeights):
        return QuantizedEmbedding(vocab_size, embedding_dim, weight)
    return Embedding(vocab_size, embedding_dim, weight)
