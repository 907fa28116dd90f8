"""Layers with a sliding window (Mistral: Jiang et al., 2023).

The caches keep all tokens, and the mask hides those outside the window. The answers are right, but no memory is saved:
for that, a cache would have to overwrite tokens that have left the window.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any


class WindowedLayer:
    """A layer with a sliding window: calls `layer` with the step's `window_mask` as its mask.

    Args:
        layer: called as layer(x, step, cache).
    """

    def __init__(self, layer: Callable[..., Any]):
        self.layer = layer

    def __call__(self, x: Any, step: Any, cache: Any) -> Any:
        """
        Args:
            x: (B, L, E), the residual stream.
            step: has `mask` and `window_mask`.
            cache: the layer's.

        Returns:
            (B, L, E), the residual stream after this layer.
        """
        return self.layer(x, replace(step, mask=step.window_mask), cache)


def inner_layer(layer: Any) -> Any:
    """A layer without its window."""
    return layer.layer if isinstance(layer, WindowedLayer) else layer


def changed_layer(layer: Any, make: Callable[[Any], Any]) -> Any:
    """What `make` makes of a layer, with the same window."""
    return WindowedLayer(make(layer.layer)) if isinstance(layer, WindowedLayer) else make(layer)


def behind_windows(layers: Sequence[Callable], windows: Sequence[int | None]) -> list[Callable]:
    """The layers of a model, as a `WindowedLayer` where `windows` is not None."""
    pairs = zip(layers, windows, strict=True)
    return [layer if window is None else WindowedLayer(layer) for layer, window in pairs]
