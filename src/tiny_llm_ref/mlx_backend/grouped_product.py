"""Products of rows with the matrices of several experts: each row with that of its own expert."""

from typing import Any, cast

import mlx.core as mx

from tiny_llm_extensions.kernels.mlx.expert_weights import Experts, reads_no_count


def grouped_product_by_expert(x: mx.array, weights: Any, counts: mx.array) -> mx.array:
    """Multiplies rows that are sorted by expert, one product per expert.

    Args:
        x: (N, I), first the rows of expert 0, then those of expert 1, and so on.
        weights: X linear layers (O, I), a sequence.
        counts: (X,) integers, the number of rows of each expert; their sum is N.

    Returns:
        (N, O) in x's type: row i is x[i] @ Wᵀ with the matrix W of its expert.
    """
    # TASK 4.2.3: cut x into the rows of each expert, call its layer with each part, and put the results together.
    # A product reads its whole matrix: the layer of an expert without rows must not be called.
    ends = cast(list[int], mx.cumsum(counts).tolist())
    parts = mx.split(x, ends[:-1])
    outputs = [w(rows) for rows, w in zip(parts, weights, strict=True) if len(rows)]
    return mx.concatenate(outputs) if outputs else mx.zeros((0, weights[0].shape[0]), x.dtype)


def grouped_matmul(x: mx.array, weights: Experts, counts: mx.array) -> mx.array:
    """`grouped_product_by_expert`, or one call of MLX that reads no count on the host, where it has one. Given."""
    if not reads_no_count(weights):
        return grouped_product_by_expert(x, weights, counts)
    sorted_experts = {"rhs_indices": _experts_of_rows(counts, len(x)), "sorted_indices": True}
    if isinstance(weights, mx.array):
        return mx.gather_mm(x[:, None], weights.swapaxes(1, 2), **sorted_experts)[:, 0]
    return weights.gathered(x[:, None], **sorted_experts)[:, 0]


def _experts_of_rows(counts: mx.array, rows: int) -> mx.array:
    """The expert of each of N sorted rows, (N,): how many experts end at or before its place."""
    return (mx.arange(rows)[:, None] >= mx.cumsum(counts)).sum(axis=1).astype(mx.uint32)
