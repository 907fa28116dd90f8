"""One product for every kind of weight. Given."""

from functools import cache

import torch

from ..biased_weights import BiasedWeights
from .basics import linear
from .quantized_weights import QuantizedWeights, quantized_linear

Weights = torch.Tensor | QuantizedWeights | BiasedWeights


def project(x: torch.Tensor, w: Weights, bias: torch.Tensor | None = None) -> torch.Tensor:
    """`x @ w.T + bias`, computed the way that the weight's type asks for.

    Args:
        x: (..., I).
        w: (O, I); quantised ones take `quantized_linear`, and one with a bias brings its own.
        bias: (O,) or None.

    Returns:
        (..., O).
    """
    if isinstance(w, BiasedWeights):
        return project(x, w.weight, w.bias)
    if isinstance(w, QuantizedWeights):
        return quantized_linear(x, w, bias)
    if w.dtype == torch.bfloat16 and w.device.type == "cpu" and _wants_float32(x):
        return _linear_in_float32(x, w, bias)
    return linear(x, w, bias)


# A CPU without units for bf16 multiplies one row of it well, and each further row takes as long again. In float32 the
# price is the conversion, and further rows cost little: between 4 and 10 rows they meet, by threads and by matrix.
FEW_ROWS = 8
TILE = 256  # rows of w that become float32 at a time: they stay in the processor's cache until they are used


def _wants_float32(x: torch.Tensor) -> bool:
    return x.numel() // x.shape[-1] >= FEW_ROWS and not _has_bf16_units()


@cache
def _has_bf16_units() -> bool:
    found = getattr(torch.cpu, "get_capabilities", dict)()  # older builds of torch do not say
    return any(found.get(unit, False) for unit in ("avx512_bf16", "amx_bf16", "bf16"))


def _linear_in_float32(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """The product of bf16 numbers in float32, tile by tile: the weight is never there in float32 as a whole."""
    wide = x.float()
    out = torch.cat([(wide @ tile.float().T).to(x.dtype) for tile in w.split(TILE)], dim=-1)
    return out if bias is None else out + bias
