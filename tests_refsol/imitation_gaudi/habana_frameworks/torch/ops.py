"""Operators of `torch.ops.hpu`, with the order of arguments and the demands of the real ones."""

from types import SimpleNamespace

import torch

from .. import record


def convert_from_uint4(qweight, scales, zero_points, out_dtype):
    """It dequantises; there is no 4-bit product. By position:

    qweight (K, N / 8) int32, scales (K / g, N), zero_points (K / g, N / 8) int32 or None: (K, N).
    """
    record.note("convert_from_uint4", qweight, scales, zero_points, str(out_dtype))
    K, N = qweight.shape[0], qweight.shape[1] * 8
    groups = scales.shape[0]
    assert qweight.dtype == torch.int32 and K % groups == 0 and tuple(scales.shape) == (groups, N)
    assert scales.dtype == out_dtype == torch.bfloat16, "scales and result are bf16"
    q, s = _nibbles(qweight.cpu()), scales.cpu().double()
    z = torch.full((groups, N), 8) if zero_points is None else _nibbles(zero_points.cpu())
    assert z.shape == s.shape, "zero points are words along N, as the weights are"
    rows = [(q[k] - z[k * groups // K]) * s[k * groups // K] for k in range(K)]
    return torch.stack(rows).to(out_dtype).to("hpu")


def _nibbles(words):
    """Eight numbers of each word, the lowest bits first; by division, which knows no sign bit."""
    unsigned = words.long() % 2**32
    return torch.stack([unsigned // 16**j % 16 for j in range(8)], dim=-1).flatten(-2)


def sdpa_recomp_fwd(q, k, v, mask, dropout, scale, is_causal, requires_backward, softmax_mode, valid, side):
    """The output, the largest score and 1 / (sum of weights) of every query, (…, L, 1) each, and a seed.

    Few key heads come as (B, Hkv, 1, S, D) beside queries of (B, Hkv, group, L, D).
    """
    options = (dropout, scale, is_causal, requires_backward, softmax_mode, valid, side)
    record.note("sdpa_recomp_fwd", q, k, v, mask, *options)
    assert q.shape[-2] > 1, "no caller of L = 1 is known upstream"
    assert requires_backward, "without it the kernel keeps no statistics"
    assert dropout == 0 and not is_causal and valid is None and side in ("left", "right")
    assert softmax_mode in ("None", "fast", "fp32") and (softmax_mode != "fp32" or q.dtype == torch.bfloat16)
    assert q.dtype == k.dtype == v.dtype == mask.dtype and q.dim() == k.dim() == mask.dim()
    assert k.shape[1] == q.shape[1] and (q.dim() == 4 or k.shape[2] == 1), "the group is an axis of its own"
    assert torch.broadcast_shapes(mask.shape, (*q.shape[:-1], k.shape[-2])) == (*q.shape[:-1], k.shape[-2])
    scores = torch.einsum(
        "...ld,...sd->...ls", q.cpu().double(), k.cpu().double().expand(*q.shape[:-2], -1, -1)
    )
    scores = scores * scale + mask.cpu().double()
    m = scores.max(-1, keepdim=True)[0]
    weights = torch.exp(scores - m)  # NaN in the row of a query that sees nothing, as the kernel's
    total = weights.sum(-1, keepdim=True)
    out = torch.einsum("...ls,...sd->...ld", weights / total, v.cpu().double().expand(*q.shape[:-2], -1, -1))
    unit = 1 / 128 if softmax_mode == "fast" else 1.0
    kind = torch.float32 if softmax_mode == "fp32" else q.dtype
    return out.to(q.dtype).to("hpu"), m.to(kind).to("hpu"), (unit / total).to(kind).to("hpu"), None


torch.ops.hpu = SimpleNamespace(convert_from_uint4=convert_from_uint4, sdpa_recomp_fwd=sdpa_recomp_fwd)
