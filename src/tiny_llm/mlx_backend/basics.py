"""Layers of one operation: softmax, linear, SiLU, RMSNorm and the embedding."""

from typing import Any

import mlx.core as mx

from tiny_llm_engine.arrays.layers import DenseLinear, Linear, with_bias


def softmax(x: mx.array, axis: int) -> mx.array:
    """Softmax: turns scores into non-negative weights that sum to 1 along `axis`.

    Args:
        x: scores of any shape; -inf means weight 0.
        axis: the axis to normalise over; a negative one counts from the end.

    Returns:
        Weights, same shape and type as `x`. Finite for scores of any size.
    """
    # TASK 1.1.1: exp(x) / sum(exp(x)) along the axis.
    # Scores of 1e4 must not overflow, and -1e4 must not become 0/0.
    raise NotImplementedError("week 1 day 1 task 1: softmax")


def linear(x: mx.array, w: mx.array, bias: mx.array | None = None) -> mx.array:
    """A linear layer: `x @ w.T + bias`.

    Args:
        x: (..., I) inputs.
        w: (O, I) weights, one row per output, as checkpoints store them.
        bias: (O,) or None.

    Returns:
        (..., O).
    """
    # TASK 1.1.2: each row of w gives one output.
    raise NotImplementedError("week 1 day 1 task 2: linear")


def silu(x: mx.array) -> mx.array:
    """x · sigmoid(x), the gate of Qwen3's MLP (Elfwing et al., 2017; also called swish).

    Args:
        x: any shape and floating-point type.

    Returns:
        Same shape and type as `x`: near 0 for very negative x, near x for large x; finite for every finite x.
    """
    # TASK 1.4.2: multiply every number by its sigmoid, 1 / (1 + exp(-x)).
    # A formula written with exp can overflow at ±1e4, and ∞/∞ is NaN.
    raise NotImplementedError("week 1 day 4 task 2: silu")


class RMSNorm:
    """x / √(mean(x²) + eps) · weight over the last axis (Zhang and Sennrich, 2019).

    Args:
        dim: E, the size of the last axis.
        weight: (E,), one factor per dimension, in the type of the inputs.
        eps: added to the mean square before the root, so that a vector of zeros gives zeros.

    Raises:
        ValueError: the weight's shape is not (E,).
    """

    def __init__(self, dim: int, weight: mx.array, eps: float = 1e-5):
        if tuple(weight.shape) != (dim,):
            raise ValueError(f"the norm's weight has shape {tuple(weight.shape)}, dim {dim} needs ({dim},)")
        self.dim, self.weight, self.eps = dim, weight, eps

    def __call__(self, x: mx.array) -> mx.array:
        """
        Args:
            x: (..., E) in any floating-point type.

        Returns:
            (..., E) in x's type; the mean square and the division are computed in float32.
        """
        # TASK 1.4.1: take the mean square in float32, divide by its root, cast back to x's type, apply the weight.
        # With bf16's 8 bits of precision a long sum stops growing, and in float16 the square of 256 is infinite.
        raise NotImplementedError("week 1 day 4 task 1: RMSNorm.__call__")


def linear_layer(weight: Any, bias: mx.array | None = None) -> Linear:
    """An array (O, I) becomes a layer that multiplies by Day 1.1's `linear`; all other weights are layers already."""
    return with_bias(weight, bias) if callable(weight) else DenseLinear(linear, w=weight, bias=bias)


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
        raise NotImplementedError("week 1 day 5 task 1: Embedding.__call__")

    def as_linear(self, x: mx.array) -> mx.array:
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

    def __call__(self, ids: mx.array) -> mx.array:
        """See `Embedding`: (...) ids to (..., E) rows, in `weight.dtype`."""
        return self.weight.rows(ids)

    def as_linear(self, x: mx.array) -> mx.array:
        """See `Embedding`: (..., E) to (..., V) logits, in x's type."""
        return self.weight(x)


AnyEmbedding = Embedding | PackedEmbedding


def embedding_of(vocab_size: int, embedding_dim: int, weight: Any) -> AnyEmbedding:
    """The embedding of a table: an array, or a weight that looks up its own rows. Given."""
    kind: Any = PackedEmbedding if callable(weight) else Embedding
    return kind(vocab_size, embedding_dim, weight)
