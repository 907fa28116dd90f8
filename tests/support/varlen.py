"""torch's `varlen_attn_out` on a CPU: refuses what its kernel for CUDA refuses, and computes the same in float64.

The rules are those of torch 2.13's FlashAttention 2 with pages, and of its wrapper. What is computed is one operation,
so that a recorded graph holds it as one call.
"""

from typing import Any

import torch
from torch.utils import _python_dispatch

TYPES = [torch.float16, torch.bfloat16]
calls: list[int] = []  # max_q of each


def varlen_attn_out(
    out, query, key, value, cu_seq_q, cu_seq_k, max_q, max_k,
    *, return_aux=None, scale=None, window_size=(-1, -1), enable_gqa=False, seqused_k: Any = None,
    block_table: Any = None, num_splits=None,
):  # fmt: skip
    """See torch's; with pages and causal, as it is called here."""
    arrays, indices = (out, query, key, value), (cu_seq_q, cu_seq_k, seqused_k, block_table)
    rules = {
        "indices": lambda: all(each is not None and each.dtype == torch.int32 for each in indices),
        "type": lambda: query.dtype in TYPES and {each.dtype for each in arrays} == {query.dtype},
        "layout": lambda: all(each.stride(-1) == 1 for each in (*arrays, *indices)),
        "head size": lambda: query.shape[2] % 8 == 0 and query.shape[2] <= 256,
        "page size": lambda: key.shape[1] % 256 == 0,
        "heads": lambda: enable_gqa and query.shape[1] % key.shape[2] == 0,
        "splits": lambda: num_splits == 1,  # more leave rows unwritten, pytorch 194167
        "sizes": lambda: len(cu_seq_q) == len(cu_seq_k) == len(seqused_k) + 1 == len(block_table) + 1,
        "causal": lambda: window_size[1] == 0,
        "limits": lambda: cu_seq_q.diff().max() <= max_q and seqused_k.max() <= max_k,
    }
    if not _python_dispatch._get_current_dispatch_mode():  # a recorded graph reads no numbers
        calls.append(max_q)
    else:
        del rules["limits"]
    for name, holds in rules.items():
        if not holds():
            raise RuntimeError(f"varlen_attn_out: {name}")
    factor = query.shape[2] ** -0.5 if scale is None else scale
    _attend(out, query, key, value, cu_seq_q, seqused_k, block_table, factor, window_size[0])
    return out


def _attend_pages(
    out: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, starts: torch.Tensor,
    lengths: torch.Tensor, tables: torch.Tensor, scale: float, left: int,
) -> None:  # fmt: skip
    out.fill_(torch.nan)  # whatever memory held: rows of no request stay unwritten
    for start, stop, S, table in zip(starts[:-1], starts[1:], lengths.tolist(), tables.long(), strict=True):
        q, group = query[start:stop].double(), query.shape[1] // key.shape[2]
        k, v = (part[table].flatten(0, 1)[:S].double().repeat_interleave(group, 1) for part in (key, value))
        last, place = torch.arange(S - len(q), S)[:, None], torch.arange(S)
        seen = (place <= last) & ((place >= last - left) | (left < 0))
        scores = (torch.einsum("lhd,shd->hls", q, k) * scale).masked_fill(~seen, -torch.inf)
        out[start:stop] = torch.einsum("hls,shd->lhd", torch.softmax(scores, -1).nan_to_num(0), v).to(
            out.dtype
        )


_attend = torch.library.custom_op("imitation::varlen", _attend_pages, mutates_args=["out"])
