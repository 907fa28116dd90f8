"""torch's `varlen_attn_out` on a CPU: refuses what its kernel for CUDA refuses, and computes the same in float64.

The rules are those of torch 2.13's FlashAttention 2 with pages, and of its wrapper. It is an operation of its own, so
that a recorded graph holds it as one call.
"""

import torch

TYPES = [torch.float16, torch.bfloat16]
calls: list[dict] = []


def check(is_right: bool, message: str) -> None:
    if not is_right:
        raise RuntimeError(f"varlen_attn_out: {message}")


def varlen_attn_out(
    out,
    query,
    key,
    value,
    cu_seq_q,
    cu_seq_k,
    max_q,
    max_k,
    *,
    return_aux=None,
    scale=None,
    window_size=(-1, -1),
    enable_gqa=False,
    seqused_k=None,
    block_table=None,
    num_splits=None,
):
    """See torch's. Pages only, as we call it."""
    arrays, indices = (out, query, key, value), (cu_seq_q, cu_seq_k, seqused_k, block_table)
    check(
        all(index is not None for index in indices),
        "cu_seq_k, seqused_k and block_table are needed with pages",
    )
    check(all(index.dtype == torch.int32 for index in indices), "indices are not int32")
    check(all(index.is_contiguous() for index in indices), "indices are not contiguous")
    check(query.dtype in TYPES and {each.dtype for each in arrays} == {query.dtype}, "type")
    check(all(each.stride(-1) == 1 for each in arrays), "the last axis is not contiguous")
    (_, H, D), (_, page, kv_heads, _), R = query.shape, key.shape, len(seqused_k)
    check(D % 8 == 0 and D <= 256, "head size")
    check(page % 256 == 0, "page size")
    check(H % kv_heads == 0 and enable_gqa, "heads")
    check(num_splits == 1, "with pages, several splits leave rows unwritten (pytorch 194167)")
    check(len(cu_seq_q) == len(cu_seq_k) == R + 1 and len(block_table) == R, "sizes of indices")
    check(
        out.shape == query.shape and key.shape == value.shape and window_size[1] == 0, "shapes, or not causal"
    )
    calls.append({"requests": R, "max_q": max_q, "max_k": max_k})
    factor = D**-0.5 if scale is None else scale
    _attend(out, query, key, value, cu_seq_q, seqused_k, block_table, max_q, max_k, factor, window_size[0])
    return out


@torch.library.custom_op("imitation::varlen", mutates_args=["out"])
def _attend(
    out: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cu_seq_q: torch.Tensor,
    seqused_k: torch.Tensor,
    block_table: torch.Tensor,
    max_q: int,
    max_k: int,
    scale: float,
    left: int,
) -> None:
    out.fill_(torch.nan)  # whatever memory held: rows of no request stay unwritten
    starts, pages = cu_seq_q.tolist(), block_table.shape[1] * key.shape[1]
    for index, (keys, table) in enumerate(zip(seqused_k.tolist(), block_table, strict=True)):
        rows = slice(starts[index], starts[index + 1])
        check(rows.stop - rows.start <= max_q and keys <= min(max_k, pages), "a request exceeds the limits")
        k, v = (part[table.long()].flatten(0, 1)[:keys].double() for part in (key, value))
        out[rows] = _one(query[rows].double(), k, v, scale, left).to(out.dtype)


def _one(q, k, v, scale: float, left: int):
    """(L, H, D) in float64: the last L tokens of a text of S see it up to themselves; a row without keys is 0."""
    (L, H, _), S = q.shape, len(k)
    k, v = (part.repeat_interleave(H // part.shape[1], dim=1) for part in (k, v))
    last, key = torch.arange(S - L, S)[:, None], torch.arange(S)
    seen = (key <= last) & ((key >= last - left) | (left < 0))
    scores = (torch.einsum("lhd,shd->hls", q, k) * scale).masked_fill(~seen, -torch.inf)
    return torch.einsum("hls,shd->lhd", torch.softmax(scores, dim=-1).nan_to_num(0), v)
