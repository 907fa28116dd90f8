"""Keys and values in eight bits: rounding rows, attention over codes and scales, and what rounding costs (Day 4.5)."""

import torch

from .basics import softmax

LARGEST = 127  # -128 is not used, so that a number and its opposite are kept alike
Quantized = tuple[torch.Tensor, torch.Tensor]  # codes and scales


def quantize_rows(x: torch.Tensor, largest: int = LARGEST) -> Quantized:
    """Rounds rows to integers: the number of a row that is farthest from 0 becomes `largest` or -`largest`.

    Args:
        x: (..., D) keys or values, of any floating type; for each token and head a row.
        largest: 127 for 8 bits, 7 for 4.

    Returns:
        codes: (..., D) int8, from -`largest` to `largest`.
        scales: (...) bf16, so that codes · scales is nearly x. For a row of zeros the scale is 0, and so are the codes.
    """
    # TASK 4.5.1: a scale is the farthest number / `largest`, in bf16; the codes are made for the *rounded* scale.
    # bf16 has 8 bits: the kept scale is 1/256 too small at most, so no code is beyond `largest`. Do not divide by 0.
    x = x.float()
    scales = (x.abs().amax(dim=-1) / largest).bfloat16()
    steps = torch.where(scales > 0, scales.float(), 1).unsqueeze(-1)
    return (x / steps).round().to(torch.int8), scales


def attend_quantized(
    query: torch.Tensor, keys: Quantized, values: Quantized, slots: torch.Tensor, scale: float | None = None
) -> torch.Tensor:
    """Attention of one token over a request's keys and values, which a pool holds in eight bits.

    Args:
        query: (H, D), of any floating type.
        keys, values: codes (N, Hkv, D) int8 and scales (N, Hkv) bf16 of all N slots of a pool; H is a multiple of Hkv.
        slots: (S,) integers: the slots of the tokens that the query sees, in any order.
        scale: of the scores; 1/√D when None.

    Returns:
        (H, D) float32.
    """
    # TASK 4.5.2: a key's scale multiplies its *score*, and a value's scale its *weight*: S numbers for each head,
    # where dequantised keys and values have S · D. Everything is computed in float32.
    H, D = query.shape
    key_codes, key_scales, value_codes, value_scales = (part[slots].float() for part in (*keys, *values))
    queries = query.float().reshape(key_codes.shape[1], -1, D)
    scores = queries @ key_codes.permute(1, 2, 0) * key_scales.T.unsqueeze(1)
    weights = softmax(scores * (D**-0.5 if scale is None else scale), axis=-1)
    return (weights * value_scales.T.unsqueeze(1) @ value_codes.transpose(0, 1)).reshape(H, D)


def rounding_error(x: torch.Tensor, axis: int, largest: int = LARGEST) -> float:
    """The relative error of rounding keys or values, with one scale for each line along an axis.

    Args:
        x: (S, Hkv, D) keys or values of S tokens.
        axis: -1 has a scale per token and head, as a pool has it; 0 a scale per channel and head, for all S tokens.
        largest: see `quantize_rows`.

    Returns:
        The norm of the error divided by the norm of x, in float32. x is not all zeros.
    """
    # TASK 4.5.3: lines along the axis become rows; the error is codes · scales - x.
    rows = x.float().movedim(axis, -1)
    codes, scales = quantize_rows(rows, largest)
    errors = codes.float() * scales.float().unsqueeze(-1) - rows
    return float(errors.norm() / rows.norm())
