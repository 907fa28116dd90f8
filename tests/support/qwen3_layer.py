"""Qwen3's attention layer in NumPy and float64, the oracle of Day 1.3, and the well-known wrong versions of it."""

from functools import partial

import numpy as np

from .close import recognised


def causal64(L: int, S: int) -> np.ndarray:
    """Causal mask (L, S): 0 where key j is at or before query i's position S - L + i, else -inf."""
    return np.where(np.arange(S) <= np.arange(L)[:, None] + S - L, 0.0, -np.inf)


def attention64(query, key, value, scale=None, mask=0.0) -> np.ndarray:
    """Grouped attention computed naively: every K/V head is repeated for its group."""
    group = query.shape[-3] // key.shape[-3]
    key, value = np.repeat(key, group, axis=-3), np.repeat(value, group, axis=-3)
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = query @ key.swapaxes(-2, -1) * scale + mask
    exps = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return exps / exps.sum(axis=-1, keepdims=True) @ value


def norm64(heads, weight, eps, axes: int | tuple[int, ...] = -1) -> np.ndarray:
    """RMSNorm over the D numbers of each head; other `axes` are wrong ideas."""
    return heads / np.sqrt((heads**2).mean(axis=axes, keepdims=True) + eps) * weight


def rope64(heads, theta, turn_by="token", pairs="halves") -> np.ndarray:
    """RoPE of heads (B, L, H, D); other values of `turn_by` and `pairs` are wrong ideas."""
    L, H, D = heads.shape[1:]
    positions = np.arange(L)[:, None, None] if turn_by == "token" else np.arange(H)[:, None]
    turns = np.exp(1j * positions * np.float64(theta) ** (-np.arange(0, D, 2) / D))
    if pairs == "neighbours":
        turned = (heads[..., ::2] + 1j * heads[..., 1::2]) * turns
        return np.stack([turned.real, turned.imag], axis=-1).reshape(heads.shape)
    turned = (heads[..., : D // 2] + 1j * heads[..., D // 2 :]) * turns
    return np.concatenate([turned.real, turned.imag], axis=-1)


def layer64(
    x,
    weights,
    D,
    mask,
    theta=1e6,
    eps=1e-5,
    scale=None,
    norm=norm64,
    rope=rope64,
    first="norm",
    turn_values=False,
) -> np.ndarray:
    """Qwen3's attention: project, norm q and k head by head, turn the halves, attend, join, project."""
    wq, wk, wv, wo, q_norm, k_norm = weights

    def heads(w):
        return (x @ w.T).reshape(*x.shape[:2], -1, D)

    def norm_and_turn(heads, weight):
        if first == "norm":
            return rope(norm(heads, weight, eps), theta)
        return norm(rope(heads, theta), weight, eps)

    query, key, value = norm_and_turn(heads(wq), q_norm), norm_and_turn(heads(wk), k_norm), heads(wv)
    value = rope(value, theta) if turn_values else value
    query, key, value = (array.swapaxes(1, 2) for array in (query, key, value))
    return attention64(query, key, value, scale, mask).swapaxes(1, 2).reshape(*x.shape[:2], -1) @ wo.T


def recognise(actual, x, weights, D, idea: str, **options) -> str:
    """The names of the wrong layers that compute `actual`; `idea` when it is not one of them."""
    *projections, q_norm, k_norm = weights
    wrong_layers = {
        "RoPE comes before the norms of q and k; it belongs after them": {"first": "rope"},
        "RoPE turns neighbours; Qwen3's pairs are halves (traditional=False)": {
            "rope": partial(rope64, pairs="neighbours")
        },
        "RoPE got (B, H, L, D) and turned by the number of the head; give it (B, L, H, D)": {
            "rope": partial(rope64, turn_by="head")
        },
        "RoPE is missing: queries and keys are not turned": {"rope": lambda heads, theta: heads},
        "RoPE turns the values too; only queries and keys are turned": {"turn_values": True},
        "the norms are missing: q_norm and k_norm do nothing": {"norm": lambda heads, weight, eps: heads},
        "the norm runs over all heads together; split first, then norm each head": {
            "norm": partial(norm64, axes=(-2, -1))
        },
        "q_norm and k_norm are exchanged": {"weights": [*projections, k_norm, q_norm]},
        "k_norm is not used: q_norm serves the keys too": {"weights": [*projections, q_norm, q_norm]},
        "q_norm is not used: k_norm serves the queries too": {"weights": [*projections, k_norm, k_norm]},
        "rms_norm_eps is not used": {"eps": 1e-6},
        "the scale is 1/√hidden_size; it is 1/√head_dim": {"scale": x.shape[-1] ** -0.5},
        "the scale is 1/head_dim; it is 1/√head_dim": {"scale": 1 / D},
        "the mask is lost on its way": {"mask": 0.0},
        "the mask is always causal": {"mask": causal64(*x.shape[1:2] * 2)},
    }

    options = {"x": x, "weights": weights, "D": D} | options
    computed = {name: partial(layer64, **(options | change)) for name, change in wrong_layers.items()}
    return recognised(actual, computed, idea)
