"""The matrices of a layer's experts: one array, or a linear layer of each."""

import torch

from tiny_llm_engine.arrays.layers import ExpertMatrices

Experts = torch.Tensor | ExpertMatrices  # an array (X, O, I) where one call multiplies by all of them


def has_grouped_kernel(experts: torch.Tensor) -> bool:
    """Whether `torch.nn.functional.grouped_mm` has a kernel for these matrices, (X, O, I).

    Elsewhere, so in float32 and on a GPU before Hopper, it reads the counts on the host and loops, as of torch 2.13.
    """
    is_bf16_on_gpu = (
        experts.device.type == "cuda" and experts.dtype == torch.bfloat16 and experts.shape[-1] % 8 == 0
    )
    return is_bf16_on_gpu and torch.cuda.get_device_capability(experts.device)[0] in (9, 10)
