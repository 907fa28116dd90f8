"""Operations of several kernels in one call, by PyTorch, or on a Gaudi by the vendor's kernels in `hpu.py`.

A tensor on an HPU uses the vendor's call and every other tensor PyTorch's, so the port has one code path.
"""

from functools import partial

import torch
import torch.nn.functional as F

from . import hpu


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-5) -> torch.Tensor:
    """x / √(mean(x²) + eps) · weight over the last axis, with statistics in float32.

    Args:
        x: (..., D).
        weight: (D,).

    Returns:
        (..., D) in x's type.
    """
    if x.device.type == "hpu":
        return hpu.rms_norm(x, weight, eps)
    return F.rms_norm(x, weight.shape, weight.to(x.dtype), eps)


class DeviceNorm:
    """Day 1.4's `RMSNorm` as one kernel, see `rms_norm`; the same arguments."""

    def __init__(self, dim: int, weight: torch.Tensor, eps: float = 1e-5):
        self.dim, self.weight, self.eps = dim, weight, eps

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return rms_norm(x, self.weight, self.eps)


def apply_rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotates the pairs (i, i + D/2) of every head, as Qwen3 does (not the traditional pairs 2i, 2i + 1).

    Args:
        x: (B, L, H, D).
        cos, sin: (L, D) or (B, L, D), the rows of the positions, whose second half repeats the first.

    Returns:
        (B, L, H, D) in x's type; computed in the widest of the three types.
    """
    if x.device.type == "hpu":
        return hpu.apply_rope(x, cos, sin)
    # Day 1.2's rotation on whole heads at once: half as many operations, which makes a decode step shorter.
    wide, cos, sin = x.float(), cos.unsqueeze(-2), sin.unsqueeze(-2)  # the same angles for all heads
    a, b = wide.chunk(2, dim=-1)
    return torch.addcmul(wide * cos, torch.cat([-b, a], dim=-1), sin).to(x.dtype)


# FusedSDPA counts the bytes of a plane of the bias, queries x keys, in a signed 32-bit number: with as many as this it
# returns NaN and raises nothing. From vllm-gaudi's pull request 1749, measured there on a Gaudi 3.
PLANE_BYTES = 2**31


def rows_per_call(rows: int, row_bytes: int, limit: int = PLANE_BYTES) -> int:
    """Queries of one call, so that the fewest calls of equal size have planes below the limit.

    Args:
        rows: queries in all.
        row_bytes: bytes of the bias per query.
        limit: bytes of a plane, which no call reaches unless one row does.
    """
    most = max(1, (limit - 1) // row_bytes)
    calls = -(-rows // most)
    return -(-rows // calls)


def fused_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scale: float,
    bias: torch.Tensor | None = None,
    is_causal: bool = False,
    *,
    lengths: torch.Tensor | None = None,
    limit: int = PLANE_BYTES,
) -> torch.Tensor:
    """softmax(query @ keyᵀ · scale + bias) @ value; query head h reads key head h // (H / Hkv).

    A bias whose plane reaches the limit is computed in tiles of queries. Rows are independent, so nothing is merged.
    On CUDA the same tiles help torch's memory-efficient kernel, which reads wrong parts of a mask of more than 2³²
    numbers (pytorch, issue 187227).

    Args:
        query: (B, H, L, D).
        key, value: (B, Hkv, S, D) in query's type, with H a multiple of Hkv; never repeated.
        scale: a number.
        bias: added to the scores, broadcastable to (B, H, L, S), in query's type.
        is_causal: for L = S; not supported together with a bias.
        lengths: (B,) int32, with `is_causal`: the rows of each prompt; those after them are padding.
        limit: bytes of a plane of the bias that no call may reach.

    Returns:
        (B, H, L, D) in query's type. The row of a query that sees no key, or that is padding, is undefined.
    """
    call = hpu.fused_attention if query.device.type == "hpu" else attention
    L, S = query.shape[2], key.shape[2]
    if bias is None:
        return call(query, key, value, scale, None, is_causal, lengths)
    # The kernels need four axes, with one mask for all heads or one per head. Expanding makes a view, not a copy.
    heads = bias.shape[-3] if bias.dim() > 2 else 1
    bias = bias.expand(query.shape[0], heads, L, S)
    size = L if L == 1 else rows_per_call(L, S * bias.element_size(), limit)
    if size == L:
        return call(query, key, value, scale, bias, is_causal)
    tiles = zip(query.split(size, dim=2), bias.split(size, dim=2), strict=True)
    return torch.cat([call(q, key, value, scale, mask) for q, mask in tiles], dim=2)


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scale: float,
    bias: torch.Tensor | None = None,
    is_causal: bool = False,
    lengths: torch.Tensor | None = None,
) -> torch.Tensor:
    """One call of torch's attention; see `fused_attention`."""
    # A causal row sees no padding, which comes after it, so the lengths change nothing here.
    attend = partial(F.scaled_dot_product_attention, attn_mask=bias, is_causal=is_causal, scale=scale)
    B, H, L, D = query.shape
    if L == 1 and (bias is None or bias.shape[1] == 1):
        # Treat the heads of a group as additional queries of one head; torch's CPU kernel would repeat K and V.
        return attend(query.reshape(B, key.shape[1], -1, D), key, value).reshape(B, H, L, D)
    return attend(query, key, value, enable_gqa=True)


def has_statistics_kernel(query: torch.Tensor) -> bool:
    """Whether `fused_statistics` takes these queries, (B, H, L, D): all on a CPU, and a decode's one on a Gaudi.

    Not the queries of a chunk on a Gaudi: `hpu_attention.py` says why. They are computed in tiles.
    """
    return query.device.type == "cpu" or (query.device.type == "hpu" and query.shape[2] == 1)


def fused_statistics(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scale: float | None,
    bias: torch.Tensor,
    seen: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Attention without the final division, as Day 2.4's `attention_statistics`, in as few operations as there are.

    For what `has_statistics_kernel` says yes to; `flash_attention.py` computes the rest.

    A kernel may use another m than the largest score: only o · exp(m) and l · exp(m) matter, since merging and the
    final division use nothing else.

    Args:
        query: (B, H, L, D).
        key, value: (B, Hkv, S, D) in query's type, with H a multiple of Hkv; never repeated.
        scale: 1/√D when None.
        bias: added to the scores, (L, S) or (B, 1, L, S), the same for all heads; -inf hides a key.
        seen: (L,) or (B, 1, L) booleans, the queries that see a key, made once per step. When None, the bias is read
            once more to make them.

    Returns:
        (o, m, l), all float32: (B, H, L, D), (B, H, L) and (B, H, L). A query that sees no key has o = 0, m = -inf,
        l = 0.
    """
    bias = bias.expand(query.shape[0], 1, query.shape[2], key.shape[2])
    if query.device.type == "hpu":
        return hpu.decode_statistics(
            query, key, value, query.shape[3] ** -0.5 if scale is None else scale, bias
        )
    # torch's CPU kernel returns the logarithm of the sum with the output. It needs as many K/V heads as query heads, so
    # a K/V head becomes a row of the batch, which its group reads without a copy.
    B, H, L, D = query.shape
    Hkv, S = key.shape[1:3]
    if L == 1:  # the heads of a group become queries of one head, and the batch stays as it is
        queries, mask = query.reshape(B, Hkv, -1, D), bias.expand(B, 1, H // Hkv, S)
    else:
        queries = query.reshape(B * Hkv, -1, L, D)
        key, value = (x.flatten(0, 1).unsqueeze(1).expand(-1, H // Hkv, S, D) for x in (key, value))
        mask = bias.expand(B, Hkv, L, S).reshape(-1, 1, L, S)
    out, logsumexp = attention_with_logsumexp(queries, key, value, scale, mask.to(query.dtype))
    logsumexp = logsumexp.reshape(B, H, L)
    out = out.reshape(B, H, L, D).float()
    return statistics_of_seen(bias, seen, out, logsumexp, torch.ones_like(logsumexp))


def attention_with_logsumexp(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scale: float | None = None,
    bias: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention and the logarithm of its sum of exponentials, by torch's CPU kernel. CPU tensors only.

    Args:
        query: (B, H, L, D).
        key, value: (B, H, S, D) in query's type, as many heads as query heads.
        scale: 1/√D when None.
        bias: (B, 1, L, S) in query's type, added to the scores.

    Returns:
        out (B, H, L, D) in query's type; logsumexp (B, H, L), float32.
    """
    # `F.scaled_dot_product_attention` calls the same kernel and drops the second result.
    attend = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    return attend(query, key, value, attn_mask=bias, scale=scale)


def statistics_of_seen(
    bias: torch.Tensor, seen: torch.Tensor | None, o: torch.Tensor, m: torch.Tensor, l: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(o, m, l), but (0, -inf, 0) where a query sees no key: a kernel's result there is undefined, even NaN."""
    seen = torch.any(bias > -torch.inf, dim=-1) if seen is None else seen
    return torch.where(seen[..., None], o, 0), torch.where(seen, m, -torch.inf), torch.where(seen, l, 0)
