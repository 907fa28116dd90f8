"""Sliding windows: layers in which a token sees the last few tokens only, as in Mistral (Jiang et al., 2023). Given.

The caches keep all tokens; the mask hides those that have left the window. Right answers, and no memory saved: to give
the memory back as well, a cache would have to write over what has left, which ours do not.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import mlx.core as mx

from .kv_cache import TinyKvCache, length_mask


def window_mask(
    mask: mx.array | str | None,
    positions: mx.array,
    total_length: int,
    window: int | None,
    dtype: mx.Dtype,
) -> mx.array | str | None:
    """The mask of layers that slide, made once a step from the mask of those that do not.

    A token sees itself and the `window` - 1 tokens before it. The caches hold the token of position p as their key p.

    Args:
        mask: of the layers that see everything: an array over all keys, or "causal" or None.
        positions: (L,) or (B, L), where the query tokens stand.
        total_length: S, how many keys the caches will return.
        window: how many tokens are seen; None is all.
        dtype: type of the mask.

    Returns:
        (L, S) or (B, 1, L, S); or `mask` itself, where no key is so far away that the window hides it.
    """
    if window is None or total_length <= window:
        return mask
    keys = mx.arange(total_length)
    near = mx.where(keys > mx.expand_dims(positions, -1) - window, 0.0, -mx.inf).astype(dtype)
    if mask is None or isinstance(mask, str):
        near, mask = near + length_mask(positions, total_length, dtype), 0.0
    if positions.ndim == 2:
        near = mx.expand_dims(near, 1)
    return mask + near


class WindowedLayer:
    """A layer that looks through the window: the same one, with the other mask of the step.

    Args:
        layer: called as layer(x, step, cache).
    """

    def __init__(self, layer: Any):
        self.layer = layer

    def __call__(self, x: mx.array, step: Any, cache: TinyKvCache) -> mx.array:
        """
        Args:
            x: (B, L, E), the stream.
            step: has `window_mask` beside `mask`.
            cache: the layer's.

        Returns:
            (B, L, E), the stream after this layer.
        """
        return self.layer(x, replace(step, mask=step.window_mask), cache)


def behind_windows(layers: Sequence[Callable], windows: Sequence[int | None]) -> list[Callable]:
    """The layers of a model, each with a window behind it if it has one: `windows` has None where it has not."""
    pairs = zip(layers, windows, strict=True)
    return [layer if window is None else WindowedLayer(layer) for layer, window in pairs]
