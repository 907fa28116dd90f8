"""Attention and its statistics in NumPy and float64, the oracle of Days 2.4 and 2.5."""

import numpy as np

Statistics = tuple[np.ndarray, np.ndarray, np.ndarray]


def statistics64(query, key, value, scale=None, mask: np.ndarray | float = 0.0) -> Statistics:
    """(o, m, l) computed naively, with every K/V head repeated.

    A row that sees nothing has o = 0, m = -inf, l = 0.
    """
    group = query.shape[-3] // key.shape[-3]
    key, value = np.repeat(key, group, axis=-3), np.repeat(value, group, axis=-3)
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = query @ key.swapaxes(-2, -1) * scale + mask
    m = scores.max(axis=-1)
    weights = np.exp(scores - np.where(np.isneginf(m), 0, m)[..., None])
    return weights @ value, m, weights.sum(axis=-1)


def flash64(query, key, value, scale=None, mask=0.0) -> np.ndarray:
    """Attention in which a row that sees nothing gives 0."""
    o, _, l = statistics64(query, key, value, scale, mask)
    return o / np.where(l == 0, 1, l)[..., None]
