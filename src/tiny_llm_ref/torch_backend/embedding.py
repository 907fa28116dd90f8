"""The embedding: one table that turns token ids into vectors, and vectors back into scores for every token."""

import torch

from .basics import linear
from .quantize import dequantize_weights
from .quantized_weights import QuantizedWeights, quantized_linear


class Embedding:
    """A table with one row a token of the vocabulary.

    Args:
        vocab_size: V, the number of rows.
        embedding_dim: E, the size of a row.
        weight: (V, E). It is kept, not copied.

    Raises:
        ValueError: the weight has another shape.
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
        ids = ids.to(self.weight.device)  # they come from the host; on an accelerator this is their one copy
        # TASK 1.5.1: pick rows. No arithmetic: the table's numbers come out as they are.
        return self.weight[ids]

    def as_linear(self, x: torch.Tensor) -> torch.Tensor:
        """How well `x` matches each token's row: the head of a model whose head is tied to its embedding.

        Args:
            x: (..., E).

        Returns:
            (..., V) logits, in x's type.
        """
        # TASK 1.5.2: the dot product with every row. The table has one row an output, as any linear layer.
        return linear(x, self.weight)


class QuantizedEmbedding:
    """`Embedding` for a quantised table: only the rows that are asked for become numbers. Given.

    Args:
        vocab_size: V, the number of rows.
        embedding_dim: E, the size of a row.
        weight: stands for (V, E), with its words: rows cannot be picked from another form.

    Raises:
        ValueError: the weight has another shape, or no words.
    """

    def __init__(self, vocab_size: int, embedding_dim: int, weight: QuantizedWeights):
        if weight.shape != (vocab_size, embedding_dim):
            shape = weight.shape
            raise ValueError(f"the table has shape {shape}, expected ({vocab_size}, {embedding_dim})")
        if weight.weight is None:
            raise ValueError(
                "the table has no words to pick rows from: prepare it in the form 'words' or 'both'"
            )
        self.vocab_size, self.embedding_dim, self.weight = vocab_size, embedding_dim, weight

    def __call__(self, ids: torch.Tensor) -> torch.Tensor:
        """See `Embedding`: (...) ids to (..., E) rows, in the type of the scales."""
        words, scales, biases = (
            part[ids] for part in (self.weight.weight, self.weight.scales, self.weight.biases)
        )
        return dequantize_weights(words, scales, biases, self.weight.group_size, self.weight.bits)

    def as_linear(self, x: torch.Tensor) -> torch.Tensor:
        """See `Embedding`: (..., E) to (..., V) logits, in x's type."""
        return quantized_linear(x, self.weight)


def embedding_of(
    vocab_size: int, embedding_dim: int, weight: torch.Tensor | QuantizedWeights
) -> Embedding | QuantizedEmbedding:
    """The embedding for either kind of table. Given."""
    kind = QuantizedEmbedding if isinstance(weight, QuantizedWeights) else Embedding
    return kind(vocab_size, embedding_dim, weight)
