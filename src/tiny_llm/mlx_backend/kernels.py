"""Sets of kernels by name: the course's own operations, to which faster ones are added. Given."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from .attention import scaled_dot_product_attention_grouped
from .basics import RMSNorm
from .rope import RoPE


@dataclass(frozen=True)
class Kernels:
    """Attention, the norm and RoPE. All sets compute the same.

    Args:
        attend: (query (B, H, L, D), key and value (B, Hkv, S, D), mask=…) -> (B, H, L, D). The mask shows each query
            at least its own key.
        norm: makes a norm; takes the arguments of `RMSNorm`.
        rope: makes a RoPE; takes the arguments of `RoPE`.
    """

    attend: Callable[..., mx.array] = scaled_dot_product_attention_grouped
    norm: Callable[..., Any] = RMSNorm
    rope: Callable[..., RoPE] = RoPE


# `device_kernels.py` adds those of Days 2.4 and 2.5: a model of Day 2.1 needs none of them.
KERNELS = {"simple": Kernels()}


def choose_kernels(attention: str) -> Kernels:
    """The set of kernels called `attention`.

    Raises:
        ValueError: no set has this name.
    """
    if attention not in KERNELS:
        raise ValueError(f"attention {attention!r} is unknown: choose {', '.join(KERNELS)}")
    return KERNELS[attention]
