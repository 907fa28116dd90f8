"""Attention of packed batches on a Gaudi: one call of the vendor's kernel, then the past of the decodes.

The kernel divides, and the maximum that its raw operator returns is rounded to the queries' type: two parts cannot be
merged exactly. So a chunk's past and the rows of the step are the keys of *one* call with one mask, which is what
vLLM's plug-in does for a prompt with a past. Decodes are plain products with float32 scores, and merge as on Day 3.3.
A step that is one prompt without a past needs no mask: the kernel knows causality. Not run on a Gaudi.
"""

from dataclasses import dataclass
from typing import Any

import torch

from tiny_llm_engine.arrays.torch import fused
from tiny_llm_engine.packed_model import PackedInputs

from ..kernels.torch.solution import TorchSolution

Statistics = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class FusedMask:
    """The masks of a step; made once, and shared by all layers.

    Args:
        bias: (T, S) bf16, added to the scores. The S keys are all slots of the N pages, then the T rows themselves.
        block_list: (N,) the pages that any chunk reads; None when no chunk has a past.
        slots: (N, page_size): -inf where no row sees the slot; None when no chunk has a past.
        decodes: what requests of one row read of their past, Day 3.3's `PastPages`; None when none has one.
    """

    bias: torch.Tensor
    block_list: torch.Tensor | None = None
    slots: torch.Tensor | None = None
    decodes: Any = None


@dataclass(frozen=True)
class LonePrompt:
    """What the kernel is told of a step that is one prompt without a past.

    Args:
        lengths: (1,) int32, the rows of the prompt.
        padding: (T, 1, 1) booleans, the rows after them.
    """

    lengths: torch.Tensor
    padding: torch.Tensor


def fused_mask(
    solution: TorchSolution, inputs: PackedInputs, page_size: int, window: int | None = None
) -> FusedMask | LonePrompt:
    """The masks of a step; takes the arguments of Day 3.3's `packed_mask`."""
    if inputs.lone_prompt is not None and window is None:
        rows = torch.arange(inputs.token_ids.shape[0], device=inputs.token_ids.device)
        padding = rows >= inputs.lone_prompt
        return LonePrompt(inputs.lone_prompt.to(torch.int32), padding[:, None, None])
    mask = solution.packed_mask(inputs, page_size, window)
    # The kernel wants the queries' type. 0 and -inf are exact in bf16, which queries have here unless asked otherwise.
    own, chunks = mask.own.to(torch.bfloat16), mask.chunks
    if chunks is None:
        return FusedMask(own, decodes=mask.decodes)
    past = chunks.mask.bias.to(torch.bfloat16)
    hidden = past.new_full((own.shape[0], past.shape[1]), -torch.inf)
    bias = torch.cat([hidden.index_copy(0, chunks.rows, past), own], dim=1)
    return FusedMask(bias, chunks.block_list, chunks.mask.slots, mask.decodes)


def attend_fused(
    solution: TorchSolution,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    key_pages: torch.Tensor,
    value_pages: torch.Tensor,
    mask: FusedMask | LonePrompt,
    scale: float | None = None,
) -> torch.Tensor:
    """Day 3.3's `packed_attention` in one call of the device's kernel, with the past of the decodes merged in.

    Args:
        query: (T, H, D).
        key, value: (T, Hkv, D), of this step.
        key_pages, value_pages: (num_blocks + 1, page_size, Hkv, D), of earlier steps.
        mask: see `fused_mask`.
        scale: 1/√D when None.

    Returns:
        (T, H, D) in query's type.
    """
    factor: float = query.shape[2] ** -0.5 if scale is None else scale
    if isinstance(mask, LonePrompt):
        return _attend_alone(query, key, value, mask, factor)
    keys, values = (
        _with_past(solution, own, pages, mask) for own, pages in ((key, key_pages), (value, value_pages))
    )
    q, k, v = (part.transpose(0, 1)[None] for part in (query, keys, values))
    heads = fused.fused_attention(q, k, v, factor, mask.bias.to(query.dtype))[0].transpose(0, 1)
    if mask.decodes is None:
        return heads
    return _decodes_with_past(
        solution, heads, query, key, value, key_pages, value_pages, mask.decodes, factor
    )


def _attend_alone(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, prompt: LonePrompt, scale: float
) -> torch.Tensor:
    """(T, H, D): causal attention of the rows among themselves, and 0 in rows of padding."""
    q, k, v = (part.transpose(0, 1)[None] for part in (query, key, value))
    heads = fused.fused_attention(q, k, v, scale, is_causal=True, lengths=prompt.lengths)[0].transpose(0, 1)
    # No source says what the kernel leaves in rows of padding. NaN there would be keys of the next layer.
    return torch.where(prompt.padding, 0, heads)


def _with_past(
    solution: TorchSolution, own: torch.Tensor, pages: torch.Tensor, mask: FusedMask
) -> torch.Tensor:
    """(S, Hkv, D): keys or values of the pages that chunks read, then those of the rows."""
    if mask.block_list is None or mask.slots is None:
        return own
    return torch.cat([solution.gather_pages(pages, mask.block_list, mask.slots).flatten(0, 1), own])


def _decodes_with_past(
    solution: TorchSolution,
    heads: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    key_pages: torch.Tensor,
    value_pages: torch.Tensor,
    part: Any,
    scale: float,
) -> torch.Tensor:
    """(T, H, D): `heads`, where the rows of decodes see their past as well as their own token."""
    q, k, v, alone = (x.index_select(0, part.rows) for x in (query, key, value, heads))
    pages = key_pages, value_pages, part.block_list, part.block_groups
    past = solution.paged_decode_statistics(q, *pages, part.mask, scale)
    merged = solution.merge_attention(_own_token(q, k, v, scale), past)
    found = solution.finish_attention(merged, heads.dtype)
    # Padding has rows of chunks among these: they see nothing here, and keep what the kernel found.
    has_past = (past[2] > 0).unsqueeze(-1)
    return heads.index_copy(0, part.rows, torch.where(has_past, found, alone))


def _own_token(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float) -> Statistics:
    """Statistics of P rows over their own token alone: (P, H, D), (P, H) and (P, H)."""
    P, H, D = query.shape
    grouped = query.view(P, key.shape[1], -1, D)
    m = (grouped.float() * key.unsqueeze(2).float()).sum(dim=-1).view(P, H) * scale
    o = value.unsqueeze(2).expand_as(grouped).reshape(P, H, D).float()
    return o, m, torch.ones_like(m)
