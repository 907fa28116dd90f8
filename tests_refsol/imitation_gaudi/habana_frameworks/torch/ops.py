"""Operators of `torch.ops.hpu`, with the order of arguments and the demands of the real ones."""

from types import SimpleNamespace

import torch

from .. import record
from .utils.internal import is_lazy


def convert_from_uint4(qweight, scales, zero_points, out_dtype):
    """It dequantises; there is no 4-bit product. By position:

    qweight (K, N / 8) int32, scales (K / g, N), zero_points (K / g, N / 8) int32 or None: (K, N).
    """
    record.note("convert_from_uint4", qweight, scales, zero_points, str(out_dtype))
    assert is_lazy() or torch.compiler.is_compiling(), "in lazy mode or compiled, not in plain eager"
    K, N = qweight.shape[0], qweight.shape[1] * 8
    groups = scales.shape[0]
    assert qweight.dtype == torch.int32 and K % groups == 0 and tuple(scales.shape) == (groups, N)
    assert scales.dtype == out_dtype == torch.bfloat16, "scales and result are bf16"
    q, s = _nibbles(qweight.cpu()), scales.cpu().double()
    z = torch.full((groups, N), 8) if zero_points is None else _nibbles(zero_points.cpu())
    assert z.shape == s.shape, "zero points are words along N, as the weights are"
    rows = [(q[k] - z[k * groups // K]) * s[k * groups // K] for k in range(K)]
    return torch.stack(rows).to(out_dtype).to("hpu")


def mixture_of_experts(
    *,
    hidden_states,
    expert_routing_table,
    router_weights,
    w12,
    w3,
    permuted_weights,
    activation,
    experts_min,
    experts_max,
):
    """The sum over the experts from `experts_min` to `experts_max` (included): (T, E).

    hidden_states (T, E), expert_routing_table (T, k) int64, router_weights (T, k) in their type, w12 a list of (2F, E),
    gate above up, w3 a list of (E, F); with `permuted_weights` matrices are (outputs, inputs).
    """
    record.note("mixture_of_experts", hidden_states, expert_routing_table, len(w12), experts_min, experts_max)
    assert expert_routing_table.dtype == torch.int64 and router_weights.dtype == hidden_states.dtype
    assert permuted_weights and activation == "silu" and len(w12) == len(w3) == experts_max - experts_min + 1
    x, table, weights = (
        hidden_states.cpu().double(),
        expert_routing_table.cpu(),
        router_weights.cpu().double(),
    )
    out = torch.zeros_like(x)
    for token, (chosen, counts) in enumerate(zip(table.tolist(), weights, strict=True)):
        for expert, weight in zip(chosen, counts, strict=True):
            if experts_min <= expert <= experts_max:
                first, last = (w[expert - experts_min].cpu().double() for w in (w12, w3))
                gate, up = (first @ x[token]).chunk(2)
                out[token] += weight * (last @ (torch.nn.functional.silu(gate) * up))
    return out.to(hidden_states.dtype).to("hpu")


def _nibbles(words):
    """Eight numbers of each word, the lowest bits first; by division, which knows no sign bit."""
    unsigned = words.long() % 2**32
    return torch.stack([unsigned // 16**j % 16 for j in range(8)], dim=-1).flatten(-2)


# `sdpa_recomp_fwd` is missing on purpose. The real one returns its maximum in the queries' type, whatever the softmax
# mode, so what is merged by it is off by 0.2 at scores of 80; and upstream calls it only on contiguous slices of keys
# of 1,024 and more.
torch.ops.hpu = SimpleNamespace(convert_from_uint4=convert_from_uint4, mixture_of_experts=mixture_of_experts)
