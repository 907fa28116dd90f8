"""`torch.ops.hpu.convert_from_uint4`, with the demands of the real one. It dequantises; there is no 4-bit product."""

from types import SimpleNamespace

import torch

from .. import record


def convert_from_uint4(qweight, scales, zero_points, out_dtype):
    """qweight (K, N / 8) int32, scales (K / g, N), zero_points (K / g, N / 8) int32 or None, by position: (K, N)."""
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


torch.ops.hpu = SimpleNamespace(convert_from_uint4=convert_from_uint4)
