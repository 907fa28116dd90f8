"""The attention mask of a chunk of a prompt: some rows of the causal mask."""

import mlx.core as mx

from tiny_llm_engine.arrays.checks import check_chunk


def chunked_attention_mask(
    chunk_start: int | mx.array,
    chunk_size: int,
    total_length: int | None = None,
    dtype: mx.Dtype = mx.float32,
) -> mx.array:
    """The rows [chunk_start, chunk_start + chunk_size) of a prompt's causal mask.

    Args:
        chunk_start: number of tokens before the chunk. If it is an array, and `total_length` is given, it is not a
            constant of a compiled program: one program serves all chunks of this size.
        chunk_size: L, number of tokens in the chunk.
        total_length: S, number of keys; chunk_start + chunk_size when None. A cache of fixed length returns more keys
            than it holds: its unwritten tail is hidden.
        dtype: type of the mask.

    Returns:
        (L, S): 0 where the key is visible, -inf where it is hidden.

    Raises:
        ValueError: `chunk_start` is negative, the chunk is empty, the keys end before the chunk does, or `chunk_start`
            is an array and `total_length` is None. The number in an array is not checked.
    """
    check_chunk(chunk_start, chunk_size, total_length)
    # TASK 2.7.6: compare the position of each query of the chunk with the position of each key.
    # Query i of the chunk has position chunk_start + i, and key j has j: the unused tail comes after every query.
    S = int(chunk_start) + chunk_size if total_length is None else total_length
    queries = chunk_start + mx.arange(chunk_size)[:, None]
    return mx.where(mx.arange(S) <= queries, 0.0, -mx.inf).astype(dtype)
