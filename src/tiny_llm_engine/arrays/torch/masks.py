"""Masks over a cache, causal and with a sliding window."""

import torch


def length_mask(
    positions: torch.Tensor, total_length: int, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """The causal mask over a cache: a token sees its own position and those before it.

    It also hides the positions after the last token, which were not written yet. The positions come in an array, so
    the same operations make the mask of every position.

    Args:
        positions: (..., L) integers, the positions of the L query tokens.
        total_length: S, the length of the cache.

    Returns:
        (..., L, S): 0 where the key is visible, -inf where it is hidden.
    """
    keys = torch.arange(total_length, device=positions.device)
    return torch.where(keys <= positions.unsqueeze(-1), 0.0, -torch.inf).to(dtype)


def window_mask(
    mask: torch.Tensor | str | None,
    positions: torch.Tensor,
    total_length: int,
    window: int | None,
    dtype: torch.dtype,
) -> torch.Tensor | str | None:
    """The mask of sliding-window layers, made once per step from the full-attention mask.

    A token sees itself and the `window` - 1 tokens before it. In the caches, key p belongs to position p.

    Args:
        mask: of the layers with full attention: an array over all keys, "causal" or None.
        positions: (L,) or (B, L), the positions of the query tokens.
        total_length: S, the number of keys that the caches will return.
        window: size of the window in tokens; None for no window.
        dtype: type of the mask.

    Returns:
        (L, S) or (B, 1, L, S); `mask` itself if the window hides no key.
    """
    if window is None or total_length <= window:
        return mask
    keys = torch.arange(total_length, device=positions.device)
    near = torch.where(keys > positions.unsqueeze(-1) - window, 0.0, -torch.inf).to(dtype)
    full = None if mask is None or isinstance(mask, str) else mask
    if full is None:
        near = near + length_mask(positions, total_length, dtype)
    if positions.ndim == 2:
        near = near.unsqueeze(1)
    return near if full is None else full + near
