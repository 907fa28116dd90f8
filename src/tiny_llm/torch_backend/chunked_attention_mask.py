"""Who sees whom while a chunk of a prompt is computed: rows out of the middle of the causal mask."""

import torch


def chunked_attention_mask(
    chunk_start: int | torch.Tensor,
    chunk_size: int,
    total_length: int | None = None,
    dtype: torch.dtype = torch.float32,
    *,
    device: torch.device | str | None = None,
) -> torch.Tensor:
    """The rows [chunk_start, chunk_start + chunk_size) of the causal mask of a whole prompt.

    Args:
        chunk_start: tokens before the chunk. As a number in an array, with a `total_length`, it is no part of a
            compiled program: one program serves all chunks of this size.
        chunk_size: L, tokens of the chunk.
        total_length: S, how many keys there are; chunk_start + chunk_size when None. A cache of fixed length hands out
            more keys than it holds: the tail that nobody has written to yet is hidden.
        dtype: type of the mask.
        device: where the mask lives; when None, where `chunk_start` is, or torch's default.

    Returns:
        (L, S): 0 where the key is visible, -inf where it is hidden.

    Raises:
        ValueError: the start is negative, the chunk is empty, there are fewer keys than the chunk's end, or an array
            for the start comes without `total_length`. What an array holds is not read, and not checked.
    """
    _check(chunk_start, chunk_size, total_length)
    device = chunk_start.device if device is None and isinstance(chunk_start, torch.Tensor) else device
    # TASK 2.7.6: compare where each query of the chunk stands with where each key stands.
    # Query i of the chunk stands at chunk_start + i, and key j at j: the unused tail stands behind every query.
    raise NotImplementedError("week 2 day 7 task 6: chunked_attention_mask")


def _check(chunk_start: int | torch.Tensor, chunk_size: int, total_length: int | None) -> None:
    """What has no mask. Given."""
    if chunk_size < 1:
        raise ValueError(f"chunk_size is {chunk_size}: a chunk has at least 1 token")
    if isinstance(chunk_start, torch.Tensor):
        if total_length is None:
            raise ValueError("chunk_start is an array, which is not read here: give total_length as well")
        return
    if chunk_start < 0:
        raise ValueError(f"chunk_start is {chunk_start}: a prompt begins at 0")
    if total_length is not None and total_length < chunk_start + chunk_size:
        raise ValueError(
            f"total_length is {total_length}, but the chunk ends at {chunk_start} + {chunk_size}: "
            "its own keys are among them"
        )
