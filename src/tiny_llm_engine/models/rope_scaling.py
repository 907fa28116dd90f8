"""Scaled RoPEs: their frequencies and attention factor, as transformers computes them.

A model is trained on texts of some length. Each kind of scaling changes how fast the pairs of a head rotate, so that
longer texts stay within the angles that the model has seen. This is computed once, in NumPy's float32: a port gets the
angles and one factor. The kinds are those of `transformers.modeling_rope_utils`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from .files import CheckpointError, Json, is_count, require

if TYPE_CHECKING:
    from .config import ModelConfig

LARGEST_FACTOR = 10**9
# Kinds that exist but are not supported, with the reason.
REFUSED = {
    "longrope": "its frequencies change with the length of the text, and keys in the cache would have to turn again",
    "su": "it is an old name of longrope, whose frequencies change with the length of the text",
    "mrope": "it rotates by positions in an image, which a text does not have",
    "proportional": "it turns a part of each head only",
}


@dataclass(frozen=True)
class Sizes:
    """Sizes of a model that the formulas need: theta, D, and context length in tokens, now and in pretraining."""

    theta: float
    head_dim: int
    longest: int
    original: int


@dataclass(frozen=True)
class RopeScaling:
    """The parameters of a scaled RoPE.

    Args:
        rope_type: "linear", "dynamic", "llama3" or "yarn".
        frequencies: D/2 angles per position, in radians; float32 numbers.
        attention_factor: multiplies cosines and sines, so that scores grow by its square.
        grows: the sizes and the factor of "dynamic", whose frequencies change beyond the context of pretraining.
    """

    rope_type: str
    frequencies: tuple[float, ...]
    attention_factor: float = 1.0
    grows: tuple[Sizes, float] | None = None

    def angles(self, seq_len: int) -> np.ndarray:
        """The angles of the first positions, in radians: (seq_len, D/2) in float32."""
        positions = np.arange(seq_len, dtype=np.float32)[:, None]
        angles = positions * np.array(self.frequencies, np.float32)
        if self.grows is not None:
            first = self.grows[0].longest
            angles[first:] = positions[first:] * dynamic_frequencies(*self.grows, positions[first:] + 1)
        return angles


def rope_fields(data: Json) -> tuple[Json, object]:
    """RoPE's fields, from `rope_scaling` in older files and `rope_parameters` in newer ones, and its base."""
    for field in ("rope_scaling", "rope_parameters"):
        found = data.get(field)
        require(field, found, found is None or isinstance(found, dict), "an object")
    rope = data.get("rope_scaling") or data.get("rope_parameters") or {}
    return rope, rope.get("rope_theta", data.get("rope_theta"))


def read_rope_scaling(rope: Json, config: ModelConfig, data: Json) -> RopeScaling | None:
    """The scaled RoPE of a model, None for the plain one.

    Args:
        rope: as `rope_fields` returns it.
        config: has `rope_theta`, `head_dim` and the file's `max_position_embeddings`, checked.
        data: the whole `config.json`.

    Raises:
        CheckpointError: the kind is not supported, or a field of it is missing or wrong.
    """
    field = "rope_scaling" if data.get("rope_scaling") else "rope_parameters"
    kind = rope.get("rope_type", rope.get("type", "default"))
    _check_kind(f"{field}.rope_type", kind)
    _check_whole(field, data.get("partial_rotary_factor"), rope.get("partial_rotary_factor"))
    # transformers passes over fields that a kind does not have; but an object is the RoPE of some of the layers.
    parts = sorted(key for key, value in rope.items() if isinstance(value, dict))
    require(field, parts, not parts, "one RoPE for all layers")
    for key, check in KINDS[kind].keys.items():
        check(f"{field}.{key}", rope.get(key))
    compute = KINDS[kind].compute
    if compute is None:
        return None
    longest = config.max_position_embeddings
    sizes = Sizes(config.rope_theta, config.head_dim, longest, _original(rope, data) or longest)
    return _computed(field, kind, compute, sizes, rope)


def scaled_context(rope: Json, longest: int, data: Json) -> int:
    """The tokens that a model reads, as vLLM counts them: a scaling stretches the context, but llama3's is given.

    Args:
        rope, data: as for `read_rope_scaling`, which has checked them.
        longest: the file's `max_position_embeddings`.
    """
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in ("linear", "dynamic", "yarn"):
        return longest
    before = _original(rope, data) if kind == "yarn" else None
    return int((before or longest) * rope["factor"])


def _original(rope: Json, data: Json) -> int | None:
    """The context of pretraining, in tokens, where the file gives it."""
    name = "original_max_position_embeddings"
    original = rope.get(name) if data.get(name) is None else data[name]
    _optional_count(name, original)
    return original


def _check_kind(field: str, kind: object) -> None:
    known = ", ".join(KINDS)
    reason = REFUSED.get(kind) if isinstance(kind, str) else None
    wanted = f"{known}: {reason}" if reason else known
    require(field, kind, isinstance(kind, str) and kind in KINDS, wanted)


def _check_whole(field: str, *parts: object) -> None:
    for part in parts:
        wanted = "1: a part of a head that does not turn is not supported"
        require(f"{field}.partial_rotary_factor", part, part is None or part == 1, wanted)


def _computed(field: str, kind: str, compute: Compute, sizes: Sizes, values: Json) -> RopeScaling:
    try:
        with np.errstate(all="ignore"):
            frequencies, factor = compute(sizes, values)
    except (ArithmeticError, ValueError):  # a logarithm of 0, or a division by 0
        frequencies, factor = np.array([np.nan]), 1.0
    if not (np.isfinite(frequencies).all() and math.isfinite(factor)):
        raise CheckpointError(f"{field}: {kind} of these numbers is not finite")
    grows = (sizes, float(values["factor"])) if compute is dynamic else None
    return RopeScaling(kind, tuple(map(float, frequencies)), float(factor), grows)


def plain_frequencies(theta: float, head_dim: int) -> np.ndarray:
    """theta^(-2i/D): (D/2,) in float32."""
    return (1 / theta ** _exponents(head_dim)).astype(np.float32)


def _exponents(head_dim: int) -> np.ndarray:
    return np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)


def linear(sizes: Sizes, values: Json) -> tuple[np.ndarray, float]:
    """Every pair rotates `factor` times slower, as if positions were closer together."""
    return plain_frequencies(sizes.theta, sizes.head_dim) / np.float32(values["factor"]), 1.0


def dynamic(sizes: Sizes, values: Json) -> tuple[np.ndarray, float]:
    """Plain up to the model's context, `dynamic_frequencies` beyond it; their last are checked here."""
    last = dynamic_frequencies(sizes, values["factor"], np.array([[sizes.longest * values["factor"]]]))
    plain = plain_frequencies(sizes.theta, sizes.head_dim)
    return plain if np.isfinite(last).all() else last[0], 1.0


def dynamic_frequencies(sizes: Sizes, factor: float, lengths: np.ndarray) -> np.ndarray:
    """The frequencies of texts that are longer than the model's context, by an NTK-aware theta.

    transformers computes them from the length of the text so far. Keys that are in the cache stay as they are, so
    each position has those of the text that ends with it, as in transformers' own step-by-step generation.

    Args:
        lengths: (N, 1) tokens.

    Returns:
        (N, D/2) in float32.
    """
    D = sizes.head_dim
    growth = factor * lengths.astype(np.float64) / sizes.longest - (factor - 1)
    return (1 / (sizes.theta * growth ** (D / (D - 2))) ** _exponents(D)).astype(np.float32)


def llama3(sizes: Sizes, values: Json) -> tuple[np.ndarray, float]:
    """Slow pairs rotate `factor` times slower, fast ones are unchanged, those between are mixed (Llama 3.1)."""
    factor, low, high = values["factor"], values["low_freq_factor"], values["high_freq_factor"]
    frequencies = plain_frequencies(sizes.theta, sizes.head_dim)
    wavelengths = np.float32(2 * math.pi) / frequencies
    smooth = (np.float32(sizes.original) / wavelengths - np.float32(low)) / np.float32(high - low)
    mixed = (1 - smooth) * frequencies / np.float32(factor) + smooth * frequencies
    slow, fast = wavelengths > sizes.original / low, wavelengths < sizes.original / high
    return np.where(slow, frequencies / np.float32(factor), np.where(fast, frequencies, mixed)), 1.0


def yarn(sizes: Sizes, values: Json) -> tuple[np.ndarray, float]:
    """Pairs change from unchanged to slower between two pairs, given by their full turns in the original context.

    The scores are also scaled by `attention_factor` (Peng et al., 2023).
    """
    factor = values["factor"]
    low = _pair_that_turns(values.get("beta_fast") or 32, sizes)
    high = _pair_that_turns(values.get("beta_slow") or 1, sizes)
    if values.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, sizes.head_dim - 1)
    high += 0.001 * (low == high)
    ramp = np.arange(sizes.head_dim // 2, dtype=np.float32) - np.float32(low)
    as_before = 1 - np.clip(ramp / np.float32(high - low), 0, 1)
    powers = (sizes.theta ** _exponents(sizes.head_dim)).astype(np.float32)
    slower = 1 / (np.float32(factor) * powers)
    return slower * (1 - as_before) + 1 / powers * as_before, _yarn_attention(factor, values)


def _pair_that_turns(times: float, sizes: Sizes) -> float:
    """The index, not rounded, of the pair that makes `times` full turns in the original context."""
    turns = math.log(sizes.original / (times * 2 * math.pi))
    return sizes.head_dim * turns / (2 * math.log(sizes.theta))


def _yarn_attention(factor: float, values: Json) -> float:
    def sharpness(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1 if factor > 1 else 1.0

    given = values.get("attention_factor")
    if given is not None:
        return given
    weight, of_all = values.get("mscale"), values.get("mscale_all_dim")
    return sharpness(weight) / sharpness(of_all) if weight and of_all else sharpness(1)


def _number(field: str, value: object, least: float, wanted: str) -> None:
    is_number = (
        isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= LARGEST_FACTOR
    )
    require(field, value, is_number, wanted)


_factor = partial(_number, least=1, wanted="a number from 1 on")
_positive = partial(_number, least=1e-9, wanted="a positive number")


def _optional_number(field: str, value: object) -> None:
    if value is not None:
        _number(field, value, 0, "a number from 0 on")


def _optional_count(field: str, value: object) -> None:
    is_whole = value is None or is_count(value, LARGEST_FACTOR)
    require(field, value, is_whole, "a whole number of tokens")


def _optional_switch(field: str, value: object) -> None:
    require(field, value, value is None or isinstance(value, bool), "a bool")


Compute = Callable[[Sizes, Json], tuple[np.ndarray, float]]


@dataclass(frozen=True)
class Kind:
    """The function that computes a RoPE (None for the plain one), and the check of each of its fields."""

    compute: Compute | None
    keys: Mapping[str, Callable[[str, object], None]]


KINDS = {
    "default": Kind(None, {}),
    "dynamic": Kind(dynamic, {"factor": _factor}),
    "linear": Kind(linear, {"factor": _factor}),
    "llama3": Kind(
        llama3,
        {
            "factor": _factor,
            "low_freq_factor": _positive,
            "high_freq_factor": _positive,
            "original_max_position_embeddings": _optional_count,
        },
    ),
    "yarn": Kind(
        yarn,
        {
            "factor": _factor,
            "original_max_position_embeddings": _optional_count,
            "attention_factor": _optional_number,
            "beta_fast": _optional_number,
            "beta_slow": _optional_number,
            "mscale": _optional_number,
            "mscale_all_dim": _optional_number,
            "truncate": _optional_switch,
        },
    ),
}
