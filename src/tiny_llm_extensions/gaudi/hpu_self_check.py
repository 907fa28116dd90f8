"""Compares what the port computes on a Gaudi with its twins on the CPU. Not run on a Gaudi."""

from collections.abc import Callable
from functools import partial

import torch

from tiny_llm_engine.arrays.torch.fused import apply_rope, fused_attention, fused_statistics, rms_norm
from tiny_llm_engine.arrays.torch.hpu import compile_static, detect
from tiny_llm_engine.arrays.torch.quantized_pages import QuantizedPages, to_fp8

from .hpu_mixture import mixture_of_experts
from .hpu_quantized import convert_from_uint4, uint4_parts


def self_check(device: str = "hpu") -> list[tuple[str, float | str]]:
    """Compares each fused function on `device` with its twin on the CPU.

    Returns:
        (name, largest absolute difference) of each; where it fails on the device, its error in one line instead.
    """
    compiled = compile_static if device == "hpu" and not detect().lazy else None
    found: list[tuple[str, float | str]] = []
    for name, function, inputs in _self_check_cases():
        on_device = compiled(function) if compiled and name == "uint4" else function
        try:
            there = on_device(*(tensor.to(device) for tensor in inputs)).cpu()
            found.append((name, (there.float() - function(*inputs).float()).abs().max().item()))
        except (
            Exception
        ) as error:  # whatever one operator of the vendor does not take: the others are still checked
            found.append((name, f"{type(error).__name__}: {' '.join(str(error).split())}"))
    return found


def _self_check_cases() -> list[tuple[str, Callable, list[torch.Tensor]]]:
    """(name, function, inputs) of each fused function; the inputs are on the CPU."""
    normal = partial(torch.randn, generator=torch.Generator().manual_seed(0), dtype=torch.bfloat16)
    angles = torch.arange(5.0)[:, None] / 10 ** torch.linspace(0, 3, 64).repeat(2)
    query, key, value = normal(2, 4, 5, 128), normal(2, 2, 8, 128), normal(2, 2, 8, 128)
    lengths = torch.tensor([5, 3], dtype=torch.int32)
    past = torch.full((5, 8), -torch.inf, dtype=torch.bfloat16).triu(4)

    def attend(
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        bias: torch.Tensor | None = None,
        is_causal: bool = False,
    ) -> torch.Tensor:
        return fused_attention(q, k, v, 128**-0.5, bias, is_causal)

    def attend_padded(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: torch.Tensor
    ) -> torch.Tensor:
        """Without the rows of padding, which are undefined."""
        out = fused_attention(q, k, v, 128**-0.5, is_causal=True, lengths=lengths)
        padding = torch.arange(q.shape[2], device=q.device) >= lengths[:, None]
        return torch.where(padding[:, None, :, None], 0, out)

    def statistics(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        """What a merge uses: the output, and the logarithm of the sum, which does not depend on m."""
        o, m, l = fused_statistics(q, k, v, 128**-0.5, bias)
        return torch.cat([o / l[..., None], (m + l.log())[..., None]], dim=-1)

    def in_e4m3(x: torch.Tensor) -> torch.Tensor:
        return QuantizedPages(to_fp8(x), None, x.dtype).numbers()

    numbers, scales = torch.arange(64 * 128).reshape(128, 64).fmod(16).int(), normal(128, 2).abs()
    words, *table = uint4_parts(numbers, scales, torch.full((128, 2), 7, dtype=torch.int32))
    return [
        ("RMSNorm", rms_norm, [normal(2, 5, 128), normal(128)]),
        ("RoPE", apply_rope, [normal(2, 5, 4, 128), angles.cos(), angles.sin()]),
        ("attention", attend, [query, key, value]),
        ("causal attention", partial(attend, is_causal=True), [query, key[:, :, :5], value[:, :, :5]]),
        ("causal attention with padding", attend_padded, [query, key[:, :, :5], value[:, :, :5], lengths]),
        ("causal attention with a past", attend, [query, key, value, past]),
        ("decode statistics", statistics, [query[:, :, :1], key, value, past[:1].float()]),
        ("mixture", mixture_of_experts, _mixture_inputs(normal)),
        ("keys in e4m3", in_e4m3, [normal(5, 2, 128)]),
        ("uint4", partial(convert_from_uint4, dtype=torch.bfloat16), [words, *table]),
    ]


def _mixture_inputs(normal: Callable[..., torch.Tensor]) -> list[torch.Tensor]:
    """Five tokens with two of three experts each."""
    experts = torch.tensor([[0, 2], [2, 1], [1, 0], [2, 0], [0, 1]])
    return [normal(5, 64), experts, normal(5, 2).abs(), normal(3, 256, 64) / 8, normal(3, 64, 128) / 8]
