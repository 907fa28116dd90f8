"""Attention of packed batches on an NVIDIA GPU: Day 3.3's, with Day 3.2's pages, in torch's one kernel for it.

The kernel reads every text through the block table, and the rows' own keys are in the pages already, so nothing is
gathered and nothing merged. One split of the keys makes an answer independent of the batch; and with pages, several
left rows unwritten (pytorch, issue 194167). Not run on a GPU: tests use an imitation with the kernel's own checks.
"""

from typing import Any, NamedTuple

import torch

try:
    from torch.nn.attention.varlen import varlen_attn_out
except ImportError:  # older than 2.13
    varlen_attn_out: Any = None

from tiny_llm_engine.packed_model import PackedInputs, Texts

from ..kernels.torch.solution import TorchSolution


class TextMask(NamedTuple):
    """What the kernel is told of a step; made once, and shared by all layers.

    Args:
        texts: in int32.
        window: how many tokens a row sees, itself included; None is all.
    """

    texts: Texts
    window: int | None


def _as_int32(array: Any) -> torch.Tensor:
    return array.to(torch.int32)


def text_mask(
    solution: TorchSolution, inputs: PackedInputs, page_size: int, window: int | None = None
) -> Any:
    """Takes the arguments of Day 3.3's `packed_mask`, and returns its mask where the inputs have no texts."""
    if inputs.texts is None:
        return solution.packed_mask(inputs, page_size, window)
    return TextMask(inputs.texts.map(_as_int32), window)


def attend_texts(
    solution: TorchSolution,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    key_pages: torch.Tensor,
    value_pages: torch.Tensor,
    mask: Any,
    scale: float | None = None,
) -> torch.Tensor:
    """Day 3.3's `packed_attention`; the rows' own keys and values are in the pages already.

    Args:
        query: (T, H, D).
        key, value: (T, Hkv, D) of these rows.
        key_pages, value_pages: (num_blocks + 1, page_size, Hkv, D).
        mask: see `text_mask`.
        scale: 1/√D when None.

    Returns:
        (T, H, D) in query's type.
    """
    if not isinstance(mask, TextMask):
        return solution.packed_attention(query, key, value, key_pages, value_pages, mask, scale)
    heads, texts, page_size = torch.empty_like(query), mask.texts, key_pages.shape[1]
    requests, num_pages = texts.tables.shape
    # Upper limits: the host cannot read the exact ones from the device, and a captured step would keep them.
    limits = 1 if requests == len(query) else len(query), num_pages * page_size
    arrays = heads, query, key_pages, value_pages, texts.row_starts, texts.key_starts
    window = -1 if mask.window is None else mask.window - 1, 0
    reads = {"seqused_k": texts.lengths, "block_table": texts.tables, "num_splits": 1}
    varlen_attn_out(*arrays, *limits, scale=scale, window_size=window, enable_gqa=True, **reads)
    return heads


def why_no_kernel(model: Any) -> str | None:
    """Why torch's kernel does not take the heads of a model on its GPU, in words; None if it does."""
    weight, size = model.norm.weight, model.config.head_dim
    if varlen_attn_out is None:
        return f"torch {torch.__version__} does not have the kernel, and 2.13 does"
    if (found := torch.cuda.get_device_capability(weight.device)) < (8, 0):
        return f"the kernel needs compute capability 8.0, and this GPU has {'.'.join(map(str, found))}"
    if weight.dtype not in (torch.float16, torch.bfloat16):
        return f"the kernel takes float16 and bfloat16, and this model is in {str(weight.dtype)[6:]}"
    if size % 8 or size > 256:
        return f"the kernel takes heads of a multiple of 8 up to 256, and these have {size}"
    return None
